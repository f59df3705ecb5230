package crilog_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/logread"
	"github.com/crisp-cri/crisp/test/testenv"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 5000, time.UTC)

func TestAppend(t *testing.T) {
	const stamp = "2026-01-02T12:00:00.000005Z stdout "
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{"a\n", "F a\n"},
		{"\n", "F \n"},
		{"a\n\nb", "F a\nF \nP b\n"},
		{"12345\n", "F 12345\n"}, // exactly as long as allowed
		{"123456\n", "P 12345\nF 6\n"},
		{"1234512345", "P 12345\nP 12345\n"},
		{"\xff\x00 \r\n", "F \xff\x00 \r\n"},
	} {
		got := string(crilog.Append(nil, noon, crilog.Stdout, []byte(tt.in), 5))
		if got = strings.ReplaceAll(got, stamp, ""); got != tt.want {
			t.Errorf("Append(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestParseRejects(t *testing.T) {
	for _, line := range []string{
		"", "x", "yesterday stdout F x", "2026-01-02T12:00:00Z",
		"2026-01-02T12:00:00Z stdin F x", "2026-01-02T12:00:00Z stdout", "2026-01-02T12:00:00Z stdout F",
		"2026-01-02T12:00:00Z stdout Q x",
	} {
		if r, err := logread.Parse([]byte(line)); err == nil {
			t.Errorf("Parse(%q) = %+v", line, r)
		}
	}
	r, err := logread.Parse([]byte("2026-01-02T12:00:00Z stderr P:later x y\n"))
	if err != nil || r.Stream != crilog.Stderr || !r.Partial || string(r.Content) != "x y" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// join returns the content of stream in a log.
func join(t *testing.T, log []byte, stream string) []byte {
	t.Helper()
	var out []byte
	for line := range bytes.Lines(log) {
		r, err := logread.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if r.Stream != stream {
			continue
		}
		out = append(out, r.Content...)
		if !r.Partial {
			out = append(out, '\n')
		}
	}
	return out
}

// Any output, written in any pieces, can be read back.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("one\ntwo"), 3, 4)
	f.Add([]byte("\n\n\xff\r\n"), 1, 1)
	f.Add(bytes.Repeat([]byte("x"), 100), 16, 7)
	f.Fuzz(func(t *testing.T, p []byte, max, cut int) {
		max, cut = max&0xffff, cut&0xffff
		if max == 0 || cut == 0 {
			return
		}
		var log []byte
		for rest := p; len(rest) > 0; {
			n := min(cut, len(rest))
			log = crilog.Append(log, noon, crilog.Stderr, rest[:n], max)
			rest = rest[n:]
		}
		for line := range bytes.Lines(log) {
			if r, err := logread.Parse(line); err != nil || len(r.Content) > max || !r.Time.Equal(noon) {
				t.Fatalf("%q: %+v, %v", line, r, err)
			}
		}
		if got := join(t, log, crilog.Stderr); !bytes.Equal(got, p) {
			t.Errorf("read back %q, want %q", got, p)
		}
	})
}

// Parse reads files that may have been edited.
func FuzzParse(f *testing.F) {
	f.Add([]byte("2026-01-02T12:00:00Z stdout F x"))
	f.Add([]byte("2026-01-02T12:00:00.000000009Z stdout F x"))
	f.Add([]byte("2026-01-02T12:00:00.5Z stderr P x"))
	f.Add([]byte("2026-01-02T12:00:00.5+01:00 stderr P x"))
	f.Add([]byte("2026-01-02T12:00:00.Z stderr P x"))
	f.Add([]byte("2026-01-02T12:00:00.1x3Z stderr P x"))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := logread.Parse(line)
		if err == nil && r.Stream != crilog.Stdout && r.Stream != crilog.Stderr {
			t.Errorf("%q gave stream %q", line, r.Stream)
		}
		// The result does not depend on lines parsed before.
		var p logread.Parser
		for _, before := range [][]byte{line, []byte("2026-01-02T12:00:00Z stdout F x")} {
			p.Parse(before)
			again, againErr := p.Parse(line)
			if (err == nil) != (againErr == nil) || !again.Time.Equal(r.Time) || again.Stream != r.Stream || !bytes.Equal(again.Content, r.Content) {
				t.Errorf("%q after %q: %+v, %v; at first %+v, %v", line, before, again, againErr, r, err)
			}
		}
	})
}

// A rotation loses nothing, splits no record, and does not change the old file afterwards
// (kubernetes#107943).
func TestReopenWhileWriting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "0.log")
	w, err := crilog.Open(path, 0, crilog.Limit{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const lines = 20000
	var wg sync.WaitGroup
	for _, stream := range []string{crilog.Stdout, crilog.Stderr} {
		wg.Go(func() {
			for range lines {
				w.Write(stream, []byte("some line\nand a "), nil)
				w.Write(stream, []byte("half\n"), nil)
			}
		})
	}
	var rotated [][]byte
	for i := range 5 {
		time.Sleep(time.Millisecond)
		old := path + string(rune('a'+i))
		if err := os.Rename(path, old); err != nil {
			t.Fatal(err)
		}
		if err := w.Reopen(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("no new file: %v", err)
		}
		data, err := os.ReadFile(old)
		if err != nil {
			t.Fatal(err)
		}
		rotated = append(rotated, data)
	}
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for i, data := range rotated {
		if again, _ := os.ReadFile(path + string(rune('a'+i))); !bytes.Equal(again, data) {
			t.Errorf("file %d was written after Reopen had returned", i)
		}
	}
	last, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := bytes.Join(append(rotated, last), nil)
	want := strings.Repeat("some line\nand a half\n", lines)
	for _, stream := range []string{crilog.Stdout, crilog.Stderr} {
		if got := join(t, all, stream); string(got) != want {
			t.Errorf("%s: %d bytes read back, want %d", stream, len(got), len(want))
		}
	}
	var before time.Time
	for line := range bytes.Lines(all) {
		r, _ := logread.Parse(line)
		if r.Time.Before(before) {
			t.Fatalf("time goes back at %q", line)
		}
		before = r.Time
	}
}

// A full disk costs output, which is counted, but does not block, and leaves no partial record
// before later ones.
func TestFullDisk(t *testing.T) {
	testenv.NeedRoot(t, "it mounts a small tmpfs")
	dir := t.TempDir()
	if err := unix.Mount("crisp-test", dir, "tmpfs", 0, "size=8192"); err != nil {
		t.Skipf("needs mount: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	var failed error
	var lost int64
	w, err := crilog.Open(filepath.Join(dir, "0.log"), 0, crilog.Limit{}, func(err error, n int64) {
		if err != nil {
			failed = err
		}
		lost += n
	})
	if err != nil {
		t.Fatal(err)
	}
	line := []byte(strings.Repeat("x", 700) + "\n")
	for range 20 {
		w.Write(crilog.Stdout, line, nil)
	}
	if !errors.Is(failed, unix.ENOSPC) {
		t.Fatalf("reported %v, want %v", failed, unix.ENOSPC)
	}
	full, err := os.ReadFile(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	if got := join(t, full, crilog.Stdout); len(got)%len(line) != 0 {
		t.Errorf("%d bytes in the log: not whole lines", len(got))
	}
	if err := os.Truncate(w.Path(), 0); err != nil {
		t.Fatal(err)
	}
	w.Write(crilog.Stdout, []byte("again\n"), nil)
	data, _ := os.ReadFile(w.Path())
	if got := string(join(t, data, crilog.Stdout)); got != "again\n" {
		t.Errorf("log is %q after there was room again", got)
	}
	if lost == 0 {
		t.Error("nothing was reported as lost")
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// The next writer ends a record in which a writer was killed, instead of continuing it.
func TestOpenMendsATornRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	whole := crilog.Append(nil, noon, crilog.Stdout, []byte("one\ntwo\n"), crilog.MaxLine)
	if err := os.WriteFile(path, whole[:len(whole)-2], 0o640); err != nil {
		t.Fatal(err)
	}
	for range 2 { // nothing is left to mend for the second one
		w, err := crilog.Open(path, 0, crilog.Limit{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.Write(crilog.Stdout, []byte("three\n"), nil)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(join(t, data, crilog.Stdout)); got != "one\ntw\nthree\nthree\n" {
		t.Errorf("log is %q", got)
	}
}

// A log that was closed, because its container has ended, is not created again.
func TestReopenAfterClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	w, err := crilog.Open(path, 0, crilog.Limit{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := w.Reopen(); err == nil {
		t.Error("Reopen of a closed log succeeded")
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a log was made for a container that has ended")
	}
}
