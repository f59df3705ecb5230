package logread

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/regular"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// A container writes a log like a runtime, and rotates it like a kubelet.
type container struct {
	t       *testing.T
	path    string
	now     time.Time // of the next record
	file    *os.File
	late    *os.File // the previous file, which is still written to
	half    bool     // renamed, and not created again yet
	stamps  []string
	packed  int // number of compressed ones
	lines   int
	want    bytes.Buffer
	stopped atomic.Bool
}

func newContainer(t *testing.T) *container {
	c := &container{t: t, path: filepath.Join(t.TempDir(), "0.log"), now: noon}
	c.reopen()
	t.Cleanup(func() { c.stop() })
	return c
}

func (c *container) check(err error) {
	if err != nil {
		c.t.Helper()
		c.t.Fatal(err)
	}
}

// to appends the records of text to a file.
func (c *container) to(f *os.File, stream, text string) {
	c.now = c.now.Add(time.Millisecond)
	_, err := f.Write(crilog.Append(nil, c.now, stream, []byte(text), crilog.MaxLine))
	c.check(err)
	c.want.WriteString(text)
}

// line writes a line with a record for each part.
func (c *container) line(parts ...string) {
	if len(parts) == 0 {
		c.lines++
		parts = []string{fmt.Sprintf("line %d", c.lines)}
	}
	parts[len(parts)-1] += "\n"
	for _, part := range parts {
		c.to(c.file, crilog.Stdout, part)
	}
}

func (c *container) reopen() {
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	c.check(err)
	c.file, c.half = f, false
}

func (c *container) rename() {
	stamp := noon.Add(time.Duration(len(c.stamps)) * time.Second).Format(stampForm)
	c.check(os.Rename(c.path, c.path+"."+stamp))
	c.stamps = append(c.stamps, stamp)
	c.half = true
}

func (c *container) rotate() {
	c.rename()
	c.file.Close()
	c.reopen()
}

// pack compresses all rotated files but the last few.
func (c *container) pack(keep int) {
	for ; c.packed < len(c.stamps)-keep; c.packed++ {
		name := c.path + "." + c.stamps[c.packed]
		data, err := os.ReadFile(name)
		c.check(err)
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		_, err = w.Write(data)
		c.check(errors.Join(err, w.Close()))
		c.check(os.WriteFile(name+".tmp", z.Bytes(), 0o640))
		c.check(os.Rename(name+".tmp", name+".gz"))
		c.check(os.Remove(name))
	}
}

func (c *container) stop() {
	if !c.stopped.Swap(true) {
		c.file.Close()
		if c.late != nil {
			c.late.Close()
		}
	}
}

func (c *container) running(context.Context) (bool, error) { return !c.stopped.Load(), nil }

// copyAll returns the current content of a log.
func copyAll(t *testing.T, path string, o Options) string {
	t.Helper()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var out bytes.Buffer
	if o.Stdout == nil && o.Stderr == nil {
		o.Stdout, o.Stderr = &out, &out
	}
	if err := l.Copy(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func differ(t *testing.T, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	from := max(0, i-60)
	t.Errorf("%d bytes, want %d; after %d it goes on\n %.200q\nwant\n %.200q", len(got), len(want), i, got[from:], want[from:])
}

// Rotated files are part of the log, compressed or not.
func TestRotatedFiles(t *testing.T) {
	c := newContainer(t)
	for range 4 {
		c.line()
		c.line("in ", "pieces")
		c.to(c.file, crilog.Stdout, "over a rotation: ") // its rest is in the next file
		c.rotate()
		c.line("the rest")
	}
	c.pack(1)
	for _, name := range []string{".1", ".20261122", ".20261122-120000.tmp", ".20261122-120000.gz.tmp", "20261122-110000"} {
		c.check(os.WriteFile(c.path+name, []byte("2026-11-22T12:00:00Z stdout F not of the log\n"), 0o600))
	}
	differ(t, copyAll(t, c.path, Options{}), c.want.String())
	for n := range int64(14) {
		all := strings.SplitAfter(strings.TrimSuffix(c.want.String(), "\n"), "\n")
		want := strings.Join(all[max(0, len(all)-int(n)):], "")
		if n > 0 {
			want += "\n"
		}
		differ(t, copyAll(t, c.path, Options{Tail: &n}), want)
	}
	// A damaged file affects no other.
	first := c.path + "." + c.stamps[0] + ".gz"
	whole, err := os.ReadFile(first)
	c.check(err)
	c.check(os.WriteFile(first, whole[:len(whole)/2], 0o600))
	damaged := 0
	got := copyAll(t, c.path, Options{Damaged: func(error) { damaged++ }})
	if !strings.HasSuffix(c.want.String(), got) || !strings.HasPrefix(got, "the rest\n") || damaged != 1 {
		t.Errorf("without the first file: %d damaged, %q", damaged, got)
	}
	c.check(os.WriteFile(first, whole, 0o600))
	// The age of the newest rotated file is that of its last record, by the file's time.
	at := c.now.Add(-time.Minute)
	for _, stamp := range c.stamps[c.packed:] {
		c.check(os.Chtimes(c.path+"."+stamp, at, at))
	}
	want := c.want.String()
	differ(t, copyAll(t, c.path, Options{Since: c.now}), want[strings.LastIndex(want, "the rest"):])
}

// A log can be opened while its file is renamed and not created again yet.
func TestOpenInTheMiddleOfARotation(t *testing.T) {
	c := newContainer(t)
	if _, err := Open(c.path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing log was opened: %v", err)
	}
	c.line()
	c.rotate()
	c.line()
	c.rename()
	c.line() // to the old file
	differ(t, copyAll(t, c.path, Options{}), c.want.String())
	var out bytes.Buffer
	l, err := open(c.path, func() {
		if c.half {
			c.file.Close()
			c.reopen()
			c.line()
			c.stop()
		}
	})
	c.check(err)
	defer l.Close()
	c.check(l.Copy(t.Context(), Options{Stdout: &out, Running: c.running}))
	differ(t, out.String(), c.want.String())
}

// Rotations, half rotations, two at once, a compression, and output of every kind happen between
// any two steps of the reader. It loses nothing, reads nothing twice, and keeps the order.
func TestFollowHostile(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 12
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if seed < 2 { // with inotify, in real time
				followHostile(t, seed, newWatch)
			} else {
				synctest.Test(t, func(t *testing.T) { followHostile(t, seed, noWatch) })
			}
		})
	}
}

func noWatch(string) (*watch, error) { return nil, errors.New("there is none") }

func followHostile(t *testing.T, seed uint64, watches func(string) (*watch, error)) {
	r := rand.New(rand.NewPCG(seed, 0))
	c := newContainer(t)
	acts := []func(){
		func() { c.line() },
		func() { c.line("one ", "two ", "three") },
		func() { c.line(strings.Repeat("x", 20000), strings.Repeat("y", 70000)) },
		func() { c.to(c.file, crilog.Stdout, "prompt> ") },
		func() { c.to(c.file, crilog.Stderr, "error\n") },
		func() { c.rotate() },
		func() { c.rotate(); c.line(); c.rotate(); c.pack(1) },
		func() {
			c.rotate()
			c.line()
			c.rotate()
			c.line()
			c.rotate()
			c.pack(0)
		},
		func() { c.rename(); c.line() },
		func() { c.pack(1); c.line() },
	}
	for range r.IntN(5) {
		acts[r.IntN(8)]()
	}
	left := 40
	var out bytes.Buffer
	l, err := open(c.path, func() {
		left--
		switch {
		case left < 0:
			c.stop()
		case c.half && r.IntN(3) > 0:
			c.file.Close()
			c.reopen()
		case c.half:
			c.line()
		default:
			acts[r.IntN(len(acts))]()
		}
	})
	c.check(err)
	defer l.Close()
	l.watches = watches
	c.check(l.Copy(t.Context(), Options{Stdout: &out, Stderr: &out, Running: c.running}))
	differ(t, out.String(), c.want.String())
}

// A runtime may write the rest of a read to the old file while it already writes to the new one, as
// containerd does.
func TestFollowLateWriter(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			c := newContainer(t)
			left := 60
			var out bytes.Buffer
			l, err := open(c.path, func() {
				switch n := r.IntN(4); {
				case left < 0:
					c.stop()
				case n == 0 && c.late == nil:
					c.rename()
					c.late = c.file
					c.reopen()
				case n == 0:
					c.late.Close()
					c.late = nil
				case n == 1 && c.late != nil:
					c.lines++
					c.to(c.late, crilog.Stdout, fmt.Sprintf("line %d\n", c.lines))
				default:
					c.line()
				}
				left--
			})
			c.check(err)
			defer l.Close()
			l.watches = noWatch
			c.check(l.Copy(t.Context(), Options{Stdout: &out, Running: c.running}))
			got, want := slices.Sorted(strings.Lines(out.String())), slices.Sorted(strings.Lines(c.want.String()))
			if !slices.Equal(got, want) {
				t.Errorf("seed %d: %d lines, want %d", seed, len(got), len(want))
			}
		})
	}
}

// Nothing is lost without inotify, or if it is unknown which processes have a file open.
func TestFollowWithoutHelp(t *testing.T) {
	for name, blind := range map[string]func(*Log){
		"inotify": func(l *Log) { l.watches = noWatch },
		"leases": func(l *Log) {
			l.watches = noWatch
			l.writer = func(*os.File) (has, known bool) { return false, false }
		},
		"end": func(l *Log) { // each file stays open forever
			l.watches = noWatch
			l.writer = func(*os.File) (has, known bool) { return true, true }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newContainer(t)
				var out bytes.Buffer
				l, err := Open(c.path)
				c.check(err)
				defer l.Close()
				blind(l)
				go func() {
					for i := range 100 {
						time.Sleep(500 * time.Millisecond)
						c.line()
						if i%30 == 29 {
							c.rename()
							time.Sleep(300 * time.Millisecond)
							c.line()
							c.file.Close()
							c.reopen()
							c.line()
						}
					}
					c.stop()
				}()
				c.check(l.Copy(t.Context(), Options{Stdout: &out, Running: c.running}))
				differ(t, out.String(), c.want.String())
			})
		})
	}
}

// Another program may keep the old file open for writing without writing: the reader continues.
func TestFollowStaleHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newContainer(t)
		stale, err := os.OpenFile(c.path, os.O_WRONLY, 0)
		c.check(err)
		defer stale.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var out bytes.Buffer
		l, err := Open(c.path)
		c.check(err)
		defer l.Close()
		l.watches = noWatch
		done := make(chan error)
		go func() {
			done <- l.Copy(ctx, Options{Stdout: &out, Running: func(context.Context) (bool, error) { return true, nil }})
		}()
		c.line()
		synctest.Wait()
		c.rotate()
		c.line()
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		differ(t, out.String(), c.want.String())
	})
}

// A rotation is undone because the runtime does not reopen the log.
func TestFollowRotationTakenBack(t *testing.T) {
	c := newContainer(t)
	steps := 0
	var out bytes.Buffer
	l, err := open(c.path, func() {
		switch steps++; {
		case steps > 60:
			c.stop()
		case steps%5 == 0 && !c.half:
			c.rename()
		case steps%5 == 0:
			last := len(c.stamps) - 1
			c.check(os.Rename(c.path+"."+c.stamps[last], c.path))
			c.half, c.stamps = false, c.stamps[:last]
		default:
			c.line()
		}
	})
	c.check(err)
	defer l.Close()
	c.check(l.Copy(t.Context(), Options{Stdout: &out, Running: c.running}))
	differ(t, out.String(), c.want.String())
}

// A reader that is too slow misses only the removed files; a reader of a removed container's log
// stops at its end.
func TestFollowRemoved(t *testing.T) {
	c := newContainer(t)
	c.line()
	var out bytes.Buffer
	steps := 0
	l, err := open(c.path, func() {
		switch steps++; steps {
		case 4:
			c.rotate()
			c.line("lost")
			c.rotate()
			c.pack(0)
			for _, stamp := range c.stamps {
				c.check(os.Remove(c.path + "." + stamp + ".gz"))
			}
			c.line()
			c.rotate()
			c.line()
		case 12:
			c.line()
			c.check(os.RemoveAll(filepath.Dir(c.path)))
			c.line()
			c.stop()
		}
	})
	c.check(err)
	defer l.Close()
	c.check(l.Copy(t.Context(), Options{Stdout: &out, Running: c.running}))
	differ(t, out.String(), strings.ReplaceAll(c.want.String(), "lost\n", ""))
}

// A writer and a rotator run without synchronization, in real time.
func TestFollowWriter(t *testing.T) {
	followWriter(t, crilog.Limit{}, 900)
}

// A writer rotates its log by itself, many times in a second.
func TestFollowLimitedWriter(t *testing.T) {
	followWriter(t, crilog.Limit{Size: 5000, Files: 1 << 20}, 1<<20)
}

// followWriter follows the log of a writer, which is rotated each so many lines.
func followWriter(t *testing.T, limit crilog.Limit, each int) {
	path := filepath.Join(t.TempDir(), "0.log")
	w, err := crilog.Open(path, 0, limit, nil)
	if err != nil {
		t.Fatal(err)
	}
	const lines = 20000
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		defer w.Close()
		for i := range lines {
			w.Write(crilog.Stdout, fmt.Appendf(nil, "%d\n", i), nil)
			if i%each == each-1 {
				old := path + "." + noon.Add(time.Duration(i)*time.Second).Format(stampForm)
				if err := errors.Join(os.Rename(path, old), w.Reopen()); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from, to := io.Pipe()
	go func() {
		to.CloseWithError(l.Copy(t.Context(), Options{Stdout: to, Running: func(context.Context) (bool, error) {
			select {
			case <-stopped:
				return false, nil
			default:
				return true, nil
			}
		}}))
	}()
	data, err := io.ReadAll(from)
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	for i := range lines {
		want = fmt.Appendf(want, "%d\n", i)
	}
	differ(t, string(data), string(want))

	// A client that connects later gets all of it, too.
	late, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	var all bytes.Buffer
	if err := late.Copy(t.Context(), Options{Stdout: &all}); err != nil {
		t.Fatal(err)
	}
	differ(t, all.String(), string(want))
}

// Where a pod can write to the log directory, a log may be replaced by anything: a fifo there does
// not block the reader.
func TestPipeIsNoLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	pipe := func(path string) {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pipe(path)
	if l, err := Open(path); !errors.Is(err, regular.ErrOther) {
		t.Errorf("a pipe was opened as the log: %v, %v", l, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(few), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe(path + ".20261122-120000")
	l, err := Open(path)
	if err == nil {
		err = l.Copy(t.Context(), Options{Stdout: io.Discard})
		l.Close()
	}
	if !errors.Is(err, regular.ErrOther) {
		t.Errorf("a pipe was read as the rotated log: %v", err)
	}
}
