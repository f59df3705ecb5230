package logread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/cri-client/pkg/logs"

	"github.com/crisp-cri/crisp/internal/crilog"
)

// logOf writes a log of these records and returns its path.
func logOf(t testing.TB, records string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(records), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const few = `2026-11-22T12:00:00Z stdout F one
2026-11-22T12:00:00.5Z stderr F two
2026-11-22T12:00:01.000000001Z stdout P thr
2026-11-22T12:00:02Z stderr F between
2026-11-22T12:00:03+01:00 stdout F ee
2026-11-22T12:00:04Z stdout P prompt> 
`

func TestOptions(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	at := func(text string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	path := logOf(t, few)
	for _, tt := range []struct {
		name     string
		o        Options
		out, err string
	}{
		{"all", Options{}, "one\nthree\nprompt> ", "two\nbetween\n"},
		{"tail 0", Options{Tail: n(0)}, "", ""},
		{"tail 1", Options{Tail: n(1)}, "prompt> ", ""},
		{"tail 2", Options{Tail: n(2)}, "ee\nprompt> ", ""}, // another stream interrupts the line
		{"tail 4", Options{Tail: n(4)}, "three\nprompt> ", "two\nbetween\n"},
		{"tail 9", Options{Tail: n(9)}, "one\nthree\nprompt> ", "two\nbetween\n"},
		{"since", Options{Since: at("2026-11-22T12:00:02Z")}, "prompt> ", "between\n"},
		{"times", Options{Timestamps: true},
			"2026-11-22T12:00:00.000000000Z one\n2026-11-22T12:00:01.000000001Z three\n2026-11-22T12:00:04.000000000Z prompt> ",
			"2026-11-22T12:00:00.500000000Z two\n2026-11-22T12:00:02.000000000Z between\n"},
		{"limit", Options{Limit: n(11)}, "one\nthr", "two\n"},
		{"limit 0", Options{Limit: n(0)}, "", ""},
	} {
		var out, errOut bytes.Buffer
		tt.o.Stdout, tt.o.Stderr = &out, &errOut
		copyAll(t, path, tt.o)
		if out.String() != tt.out || errOut.String() != tt.err {
			t.Errorf("%s: %q and %q, want %q and %q", tt.name, out.String(), errOut.String(), tt.out, tt.err)
		}
	}
	// Lines of an unwanted stream do not count.
	var out bytes.Buffer
	copyAll(t, path, Options{Stderr: &out, Tail: n(1), Timestamps: true})
	differ(t, out.String(), "2026-11-22T12:00:02.000000000Z between\n")
	out.Reset()
	copyAll(t, path, Options{Stdout: &out, Tail: n(2)})
	differ(t, out.String(), "three\nprompt> ")
}

// Unreadable records are reported and left out; the others are not affected.
func TestDamaged(t *testing.T) {
	long := strings.Repeat("z", 3*block)
	path := logOf(t, "first\n2026-11-22T12:00:00Z stdout F one\n\n2026-11-22T12:00:00Z stdin F x\n"+long+
		"\n2026-11-22T12:00:00Z stdout F two\n\xff\x00 stdout F x\n2026-11-22T12:00:00Z stdout F tor")
	damaged := 0
	var out bytes.Buffer
	copyAll(t, path, Options{Stdout: &out, Damaged: func(error) { damaged++ }})
	differ(t, out.String(), "one\ntwo\ntor")
	if damaged != 5 {
		t.Errorf("reported %d damaged records, want 5", damaged)
	}
	two := int64(2)
	out.Reset()
	copyAll(t, path, Options{Stdout: &out, Tail: &two})
	differ(t, out.String(), "one\ntwo\ntor") // an unfinished record does not count
}

// Records may be longer than one read, and lines longer than a record.
func TestLong(t *testing.T) {
	var want strings.Builder
	var log []byte
	for i, size := range []int{0, 1, 16383, 16384, 16385, 40000, tailBlock - 40, block - 40, block, block + 1, 3*block + 7} {
		text := strings.Repeat(string(rune('a'+i)), size) + "\n"
		want.WriteString(text)
		log = crilog.Append(log, noon, crilog.Stdout, []byte(text), crilog.MaxLine)
		want.WriteString(text)
		log = crilog.Append(log, noon, crilog.Stdout, []byte(text), 1<<30)
	}
	path := logOf(t, string(log))
	differ(t, copyAll(t, path, Options{}), want.String())
	all := strings.SplitAfter(want.String(), "\n")
	for n := range len(all) {
		tail := int64(n)
		differ(t, copyAll(t, path, Options{Tail: &tail}), strings.Join(all[len(all)-1-n:], ""))
	}
}

// For a single file the output equals that of the kubelet's reader.
func TestAsTheKubelet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		// The differences: the kubelet counts records as lines, and has no timestamp for a line
		// that follows another stream's partial one.
		pieces := r.IntN(2) == 0
		var log []byte
		at := noon
		for range r.IntN(300) {
			at = at.Add(time.Duration(r.IntN(1000)) * time.Millisecond)
			stream := crilog.Stdout
			if !pieces && r.IntN(3) == 0 {
				stream = crilog.Stderr
			}
			limit := 1000
			if pieces {
				limit = 1 + r.IntN(100)
			}
			log = crilog.Append(log, at, stream, []byte(strings.Repeat("x", r.IntN(300))+"\n"), limit)
		}
		path := logOf(t, string(log))
		var o Options
		theirs := &logs.LogOptions{}
		if n := int64(r.IntN(400)); !pieces && r.IntN(2) == 0 {
			o.Tail, theirs.TailLines = &n, &n
		}
		if n := int64(r.IntN(len(log) + 10)); r.IntN(3) == 0 {
			o.Limit, theirs.LimitBytes = &n, &n
		}
		if r.IntN(2) == 0 {
			o.Since = noon.Add(time.Duration(r.IntN(100)) * time.Second)
			theirs.Since = o.Since
		}
		o.Timestamps = r.IntN(2) == 0
		theirs.Timestamp = o.Timestamps
		var out, errOut, theirOut, theirErr bytes.Buffer
		o.Stdout, o.Stderr = &out, &errOut
		copyAll(t, path, o)
		if err := logs.ReadLogs(t.Context(), path, "", theirs, nil, &theirOut, &theirErr); err != nil {
			t.Fatal(err)
		}
		differ(t, out.String(), theirOut.String())
		differ(t, errOut.String(), theirErr.String())
		if t.Failed() {
			t.Fatalf("%+v", theirs)
		}
	}
}

// A file may be truncated during reading, and a record that a full disk has cut short may be
// removed again.
func TestFollowTruncated(t *testing.T) {
	c := newContainer(t)
	var out bytes.Buffer
	steps := 0
	l, err := open(c.path, func() {
		switch steps++; {
		case steps > 42:
			c.stop()
		case steps == 20:
			c.check(os.Truncate(c.path, 0))
		case steps > 20 && steps%3 == 0:
			info, err := c.file.Stat()
			c.check(err)
			_, err = c.file.WriteString("2026-11-22T12:00:00Z stdout F torn")
			c.check(err)
			l2, err := Open(c.path)
			c.check(err)
			l2.Close()
			c.check(os.Truncate(c.path, info.Size()))
			c.line()
		case steps > 20 && steps%3 == 1:
			_, err := c.file.WriteString("2026-11-22T12:00:00Z stdout F torn")
			c.check(err)
		case steps > 20:
			info, err := c.file.Stat()
			c.check(err)
			c.check(os.Truncate(c.path, max(0, info.Size()-int64(len("2026-11-22T12:00:00Z stdout F torn")))))
			c.line()
		default:
			c.line()
		}
	})
	c.check(err)
	defer l.Close()
	c.check(l.Copy(t.Context(), Options{Stdout: &out, Running: c.running}))
	differ(t, out.String(), c.want.String())
}

// Following ends with the reader, with the limit, and with an error of the callback that looks the
// container up.
func TestFollowEnds(t *testing.T) {
	follow := func(o Options) error {
		t.Helper()
		l, err := Open(logOf(t, few))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Copy(t.Context(), o)
	}
	running := func(context.Context) (bool, error) { return true, nil }
	ten := int64(10)
	var out bytes.Buffer
	if err := follow(Options{Stdout: &out, Limit: &ten, Running: running}); err != nil || out.String() != "one\nthree\n" {
		t.Errorf("%v, %q", err, out.String())
	}
	broken := errors.New("broken")
	if err := follow(Options{Stdout: fails{broken}, Running: running}); !errors.Is(err, broken) {
		t.Errorf("a reader that has gone: %v", err)
	}
	if err := follow(Options{Stdout: &out, Running: func(context.Context) (bool, error) { return false, broken }}); !errors.Is(err, broken) {
		t.Errorf("an unknown container: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l, err := Open(logOf(t, few))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = l.Copy(ctx, Options{Stdout: &out, Running: func(context.Context) (bool, error) {
		time.AfterFunc(time.Millisecond, cancel)
		return true, nil
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

type fails struct{ err error }

func (f fails) Write([]byte) (int, error) { return 0, f.err }

// The last lines of any file are the end of all its lines.
func FuzzTail(f *testing.F) {
	f.Add([]byte(few), int64(2))
	f.Add([]byte(few), int64(1))
	f.Add([]byte(few), int64(1000))
	f.Add([]byte("\n\n2026-11-22T12:00:00Z stdout P x"), int64(0))
	f.Fuzz(func(t *testing.T, log []byte, n int64) {
		path := logOf(t, string(log))
		all := copyAll(t, path, Options{})
		n = max(n, 0)
		last := copyAll(t, path, Options{Tail: &n})
		if !strings.HasSuffix(all, last) {
			t.Errorf("%q does not end with %q", all, last)
		}
		lines := bytes.SplitAfter(log, []byte("\n"))
		if len(lines[len(lines)-1]) == 0 {
			lines = lines[:len(lines)-1]
		}
		// The last lines may be empty parts; a file with only these is empty, too.
		end := bytes.Join(lines[max(0, len(lines)-int(min(n, int64(len(lines))))):], nil)
		if last == "" && copyAll(t, logOf(t, string(end)), Options{}) != "" {
			t.Errorf("the last %d lines of %q are nothing", n, all)
		}
		if n > int64(len(lines)) && last != all {
			t.Errorf("of %d lines the last %d are %q, want %q", len(lines), n, last, all)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	var log []byte
	for i := range 100000 {
		log = crilog.Append(log, noon.Add(time.Duration(i)*12345678), crilog.Stdout, fmt.Appendf(nil, "%08d %s\n", i, strings.Repeat("x", i%150)), crilog.MaxLine)
	}
	path := logOf(b, string(log))
	five := int64(5)
	for _, bb := range []struct {
		name  string
		ours  Options
		their logs.LogOptions
	}{
		{"all", Options{}, logs.LogOptions{}},
		{"timestamps", Options{Timestamps: true}, logs.LogOptions{Timestamp: true}},
		{"since", Options{Since: noon.Add(time.Hour)}, logs.LogOptions{Since: noon.Add(time.Hour)}},
		{"tail", Options{Tail: &five}, logs.LogOptions{TailLines: &five}},
	} {
		b.Run(bb.name+"/ours", func(b *testing.B) {
			b.SetBytes(int64(len(log)))
			for b.Loop() {
				l, err := Open(path)
				if err != nil {
					b.Fatal(err)
				}
				bb.ours.Stdout = &counter{}
				if err := l.Copy(b.Context(), bb.ours); err != nil {
					b.Fatal(err)
				}
				l.Close()
			}
		})
		b.Run(bb.name+"/kubelet", func(b *testing.B) {
			b.SetBytes(int64(len(log)))
			for b.Loop() {
				if err := logs.ReadLogs(b.Context(), path, "", &bb.their, nil, &counter{}, &counter{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type counter struct{ n int }

func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return len(p), nil
}
