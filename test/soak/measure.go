package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/test/noleaks"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/crisp-cri/crisp/test/testns"
)

// A measurement is the daemons' resource usage, and the objects on the node.
type measurement struct {
	numbers map[string]float64
	things  map[string]int // lines of noleaks, with their counts
	fds     map[string]map[string]int
	stacks  map[string]map[string]int // goroutines of each daemon, by stack
}

// A row is a line of the table. A number may grow by a factor and a constant.
type row struct {
	name, unit string
	times, and float64
}

// Garbage collection and threads make the numbers inexact; a leak of several minutes exceeds these
// bounds.
var rows = []row{
	{"crispd RSS", "MiB", 0.4, 16}, {"crispd PSS", "MiB", 0.4, 16}, {"crispd heap", "MiB", 0.2, 3},
	{"crispd descriptors", "", 0, 0}, {"crispd goroutines", "", 0, 0}, {"crispd threads", "", 0.5, 8},
	{"executor RSS", "MiB", 0.4, 8}, {"executor PSS", "MiB", 0.4, 8},
	{"executor descriptors", "", 0, 0}, {"executor goroutines", "", 0, 0}, {"executor threads", "", 0.5, 8},
	{"root", "MiB", 0, 1}, {"state", "MiB", 0, 3}, // executor.log is rotated at 1 MiB, with one old file
}

// kinds has the kinds of lines of noleaks; none of them may have more lines than before.
var kinds = []string{"cgroup", "mount", "link", "address", "route", "nft", "process", "zombie", "listening", "file"}

// measure takes a measurement. The first is the reference; later ones are repeated until they do
// not exceed it.
func (n *node) measure(ctx context.Context, first bool) error {
	// The calls of a client that vanished are kept for it for two minutes. An idle executor
	// collects its garbage, which holds descriptors of processes, two to three minutes after the
	// last collection.
	deadline := time.Now().Add(5 * time.Minute)
	var last *measurement
	for {
		if !sleep(ctx, time.Second) {
			return ctx.Err()
		}
		now, err := n.look()
		if err != nil {
			return err
		}
		if first { // until two are equal
			n.before = now
			if last != nil && last.alike(now) {
				return nil
			}
		} else {
			n.after = now
			if _, problems := n.table(); len(problems) == 0 || time.Now().After(deadline) {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return errors.New("the node does not come to rest")
		}
		last = now
	}
}

// alike reports whether the node is at rest: the exact numbers are equal.
func (m *measurement) alike(now *measurement) bool {
	for _, name := range []string{"crispd descriptors", "crispd goroutines", "executor descriptors", "executor goroutines"} {
		if m.numbers[name] != now.numbers[name] {
			return false
		}
	}
	return len(more(m.things, now.things))+len(more(now.things, m.things)) == 0
}

// compare prints the table, and returns an error with what has grown.
func (n *node) compare() error {
	table, problems := n.table()
	fmt.Println(table)
	if len(problems) == 0 {
		return nil
	}
	text, err := n.debug("/debug/pprof/goroutine?debug=2")
	if len(problems) > 60 {
		problems = append(problems[:60], fmt.Sprintf("and %d more", len(problems)-60))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(n.dir, "goroutines.txt"), text, 0o644)
	}
	return errors.Join(fmt.Errorf("there is more than before:\n  %s", strings.Join(problems, "\n  ")), err)
}

func (n *node) table() (table string, problems []string) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\tbefore\tafter\tallowed\t\t\n")
	for _, r := range rows {
		before, after := n.before.numbers[r.name], n.after.numbers[r.name]
		allowed := before*(1+r.times) + r.and
		verdict := ""
		if after > allowed {
			verdict = "MORE"
			problems = append(problems, fmt.Sprintf("%s: %s, was %s", r.name, number(after, r.unit), number(before, r.unit)))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", r.name, number(before, r.unit), number(after, r.unit), number(allowed, r.unit), verdict)
	}
	for _, kind := range kinds {
		before, after := count(n.before.things, kind), count(n.after.things, kind)
		new := more(n.before.things, n.after.things)
		new = slices.DeleteFunc(new, func(line string) bool { return !strings.HasPrefix(line, kind+" ") })
		verdict := ""
		if len(new) > 0 {
			verdict = "MORE"
			problems = append(problems, new...)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t\n", plural(kind), before, after, before, verdict)
	}
	w.Flush()
	for _, daemon := range []string{"crispd", "executor"} {
		for _, line := range more(n.before.fds[daemon], n.after.fds[daemon]) {
			if n.after.numbers[daemon+" descriptors"] > n.before.numbers[daemon+" descriptors"] {
				problems = append(problems, daemon+" has open "+line)
			}
		}
		if n.after.numbers[daemon+" goroutines"] > n.before.numbers[daemon+" goroutines"] {
			for _, line := range more(n.before.stacks[daemon], n.after.stacks[daemon]) {
				problems = append(problems, daemon+"'s goroutines "+line)
			}
		}
	}
	return b.String(), problems
}

func plural(kind string) string {
	switch {
	case strings.HasSuffix(kind, "ss"):
		return kind + "es"
	case kind == "nft":
		return "nft tables, chains, rules"
	case kind == "listening":
		return "listening sockets"
	}
	return kind + "s"
}

func number(v float64, unit string) string {
	if unit == "" {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " " + unit
}

func count(things map[string]int, kind string) (sum int) {
	for line, n := range things {
		if strings.HasPrefix(line, kind+" ") {
			sum += n
		}
	}
	return sum
}

// more lists the lines whose count is larger than before.
func more(before, after map[string]int) (lines []string) {
	for line, n := range after {
		if was := before[line]; n > was {
			lines = append(lines, fmt.Sprintf("%s (%d, was %d)", line, n, was))
		}
	}
	slices.Sort(lines)
	return lines
}

// look takes one measurement.
func (n *node) look() (*measurement, error) {
	m := &measurement{numbers: map[string]float64{}, things: map[string]int{}, fds: map[string]map[string]int{}}
	heap, err := n.debug("/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return nil, err
	}
	if found := heapAlloc.FindSubmatch(heap); found != nil {
		size, _ := strconv.ParseFloat(string(found[1]), 64)
		m.numbers["crispd heap"] = size / (1 << 20)
	}
	goroutines, err := n.debug("/debug/pprof/goroutine?debug=1")
	if err != nil {
		return nil, err
	}
	m.stacks = map[string]map[string]int{"crispd": noleaks.Stacks(string(goroutines))}
	if goroutines, err = n.debug("/executor/goroutine?debug=1"); err != nil {
		return nil, err
	}
	m.stacks["executor"] = noleaks.Stacks(string(goroutines))
	for daemon, stacks := range m.stacks {
		for _, k := range stacks {
			m.numbers[daemon+" goroutines"] += float64(k)
		}
	}
	executor, err := testenv.ExecutorPid(n.state)
	if err != nil {
		return nil, err
	}
	for name, pid := range map[string]int{"crispd": n.cmd.Process.Pid, "executor": executor} {
		if err := m.process(name, pid); err != nil {
			return nil, err
		}
	}
	for name, dir := range map[string]string{"root": n.root, "state": n.state} {
		m.numbers[name] = diskUse(dir)
	}
	now, err := noleaks.TakeAll()
	if err != nil {
		return nil, err
	}
	for line := range now {
		if line == "file "+filepath.Join(n.state, "executor.log.1") {
			continue // it exists once 1 MiB was logged
		}
		if testns.Isolated() || strings.Contains(line, n.dir) || strings.Contains(line, "crisp") {
			m.things[plain(line)]++
		}
	}
	return m, nil
}

var (
	heapAlloc = regexp.MustCompile(`# HeapAlloc = (\d+)`)
	anyPid    = regexp.MustCompile(`^(process|zombie) \d+`)
	anyPort   = regexp.MustCompile(`^(listening tcp6? [0-9A-F]+):[0-9A-F]{4}`)
	anyNumber = regexp.MustCompile(`\[\d+\]`)
)

// plain returns a line without numbers that differ after a restart of a daemon.
func plain(line string) string {
	line = anyPid.ReplaceAllString(line, "$1")
	return anyPort.ReplaceAllString(line, "$1")
}

// debug sends a request to crispd's debug socket.
func (n *node) debug(path string) ([]byte, error) {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.state, "debug.sock"))
	}}}
	resp, err := client.Get("http://crispd" + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

func (m *measurement) process(name string, pid int) error {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	rollup, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
	if err != nil {
		return err
	}
	for line := range bytes.Lines(rollup) {
		f := strings.Fields(string(line))
		if len(f) == 3 && (f[0] == "Rss:" || f[0] == "Pss:") {
			kib, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				return err
			}
			m.numbers[name+" "+strings.ToUpper(strings.TrimSuffix(f[0], ":"))] = kib / 1024
		}
	}
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return err
	}
	m.numbers[name+" threads"] = float64(len(threads))
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return err
	}
	m.fds[name] = map[string]int{}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil {
			m.fds[name][anyNumber.ReplaceAllString(to, "")]++
		}
	}
	m.numbers[name+" descriptors"] = float64(len(fds))
	return nil
}

// diskUse returns the size of the files below dir, in MiB; files that disappear meanwhile are left
// out.
func diskUse(dir string) (mib float64) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			mib += float64(st.Blocks) * 512 / (1 << 20)
		}
		return nil
	})
	return mib
}
