package test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A container that writes without end keeps few log files. A client that follows its log gets each
// line once, in order, over all rotations to the container's end, from the command line and from
// the agent.
func TestAgentLogRotation(t *testing.T) {
	rotations(t, startCgroupLab(t, rotating...), 8)
}

// rotating are flags of an agent for a rotation each two seconds by crispd, or each three by the agent, and
// rotated files that last long enough for a slow client.
var rotating = []string{"--container-log-max-size", "64Ki", "--container-log-max-files", "5", "--container-log-monitor-interval", "3s"}

// rotations follows a log until it has been rotated that often.
func rotations(t *testing.T, l *lab, often int) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // the followers end with the container
	defer cancel()
	var followers sync.WaitGroup
	var byTail, byAgent counted
	l.run(t, "talker", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [count, "-1", 1ms]}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		cmd := exec.CommandContext(ctx, filepath.Join(l.n.binaries.dir, "crisp"), "--runtime-endpoint", "unix://"+l.n.socket,
			"logs", "-f", "--tail", "5", "--since", "10s", "--timestamps", "talker")
		cmd.Stdout, cmd.Stderr = &byTail, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		followers.Go(func() { byTail.end(cmd.Wait()) })
		followers.Go(func() {
			byAgent.end(l.followByAgent(ctx, "/containerLogs/default/talker/app?follow=true&timestamps=true&sinceSeconds=10", &byAgent))
		})

		dir := filepath.Join(l.n.dir, "agent/logs", "default_talker_"+string(l.pod().UID), "app")
		seen := map[string]bool{}
		l.until(func() bool {
			files, size := logFiles(t, dir)
			for name := range files {
				seen[name] = true
			}
			if written, _ := byTail.last(); len(files) > 5 || len(seen) > 8 && size > int64(written)*logRecord {
				t.Errorf("%d files with %d bytes: %v", len(files), size, files)
			}
			return t.Failed() || len(seen) > often
		}, fmt.Sprintf("the log is rotated %d times", often))

		// A client that connects later still gets the rotated files that remain.
		out, code := l.agentProcess.crisp("", "logs", "--timestamps", "talker")
		var late counted
		if _, err := late.Write([]byte(out)); err != nil || code != 0 {
			t.Errorf("logs: code %d, %v", code, err)
		}
		_, n := late.last()
		late.end(nil)
		if late.err != nil || int64(n)*logRecord < 64<<10 {
			t.Errorf("logs: %d lines, %v", n, late.err)
		}
	})
	if t.Failed() {
		cancel()
	}
	followers.Wait()
	for who, c := range map[string]*counted{"crisp logs": &byTail, "the agent": &byAgent} {
		if last, n := c.last(); c.err != nil || n < 100 {
			t.Errorf("%s: %d lines, the last %d: %v", who, n, last, c.err)
		}
	}
	// A runtime may cut off the last line of a container that it kills; then both followers
	// lack it.
	tail, _ := byTail.last()
	if all, _ := byAgent.last(); tail != all || !bytes.Equal(byTail.rest, byAgent.rest) {
		t.Errorf("one follower ends with %d and %q, the other with %d and %q", tail, byTail.rest, all, byAgent.rest)
	}
}

// logRecord is the minimum length of a record.
const logRecord = int64(len("2026-11-22T12:00:00Z stdout F 1\n"))

// logFiles returns the names of a log's files, each once even while it is being compressed,
// and their total size.
func logFiles(t *testing.T, dir string) (files map[string]bool, size int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]bool{}
	for _, e := range entries {
		files[regexp.MustCompile(`(\.gz|\.tmp)*$`).ReplaceAllString(e.Name(), "")] = true
		if info, err := e.Info(); err == nil {
			size += info.Size()
		}
	}
	return files, size
}

// followByAgent copies the agent's answer until it ends.
func (a *agentProcess) followByAgent(ctx context.Context, path string, to io.Writer) error {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(a.n.dir, "agent", "agent.sock"))
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	_, err = io.Copy(to, resp.Body)
	return err
}

// counted checks the log of a container that counts, with timestamps. The log is written to it.
type counted struct {
	mu      sync.Mutex
	rest    []byte // of an incomplete line
	n       int    // lines
	highest int
	err     error // the first fault
}

func (c *counted) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rest = append(c.rest, p...)
	for {
		line, rest, whole := bytes.Cut(c.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		c.take(string(line))
		c.rest = rest
	}
}

func (c *counted) take(line string) {
	stamp, text, _ := strings.Cut(line, " ")
	number, err := strconv.Atoi(text)
	if _, timeErr := time.Parse(time.RFC3339Nano, stamp); c.err == nil && (err != nil || timeErr != nil) {
		c.err = fmt.Errorf("line %q", line)
	}
	if c.err == nil && c.n > 0 && number != c.highest+1 {
		c.err = fmt.Errorf("after %d came %d", c.highest, number)
	}
	c.highest = number
	c.n++
}

// end records the error that ended the reading.
func (c *counted) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// last returns the last number, and the number of lines.
func (c *counted) last() (number, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.highest, c.n
}
