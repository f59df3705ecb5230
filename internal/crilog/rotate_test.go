package crilog_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/logread"
	"github.com/crisp-cri/crisp/test/testenv"
)

// A guard is a Keeper that looks at the files of a log whenever something was written.
type guard struct {
	t     *testing.T
	path  string
	limit crilog.Limit
	n     int // bytes that were written
}

func (g *guard) Writing(uint64, int64) { g.look() }

func (g *guard) Written(n int) { g.n += n; g.look() }

func (g *guard) look() {
	g.t.Helper()
	var total int64
	files, over := logFiles(g.t, g.path), int64(0)
	for _, f := range files {
		size := int64(len(f.data))
		if size > g.limit.Size && bytes.Count(f.data, []byte("\n")) > 1 {
			g.t.Fatalf("%s has %d bytes", f.name, size)
		}
		total, over = total+size, over+max(size-g.limit.Size, 0)
	}
	if len(files) > g.limit.Files || total-over > g.limit.Size*int64(g.limit.Files) {
		g.t.Fatalf("%d files have %d bytes", len(files), total)
	}
}

type logFile struct {
	name string
	data []byte
}

// logFiles returns the files of a log, oldest first.
func logFiles(t *testing.T, path string) (files []logFile) {
	t.Helper()
	names, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	if len(names) > 0 && names[0] == path {
		names = append(names[1:], path)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, logFile{name, data})
	}
	return files
}

func all(t *testing.T, path string) (data []byte) {
	t.Helper()
	for _, f := range logFiles(t, path) {
		data = append(data, f.data...)
	}
	return data
}

// output is output of a container as the executor reads it: up to 64 KiB at once, with lines of a few
// bytes and some that are longer than a file of the log may be.
func output(r *rand.Rand) []byte {
	var p []byte
	for size := 1 + r.IntN(64<<10); len(p) < size; {
		n := r.IntN(120)
		if r.IntN(200) == 0 {
			n *= 100
		}
		p = append(append(p, bytes.Repeat([]byte{byte('a' + r.IntN(26))}, n)...), '\n')
	}
	return p[:len(p)-r.IntN(2)]
}

// However much is written at once, no file of the log is larger than its limit, and at no moment are
// there more files. What is kept is the end of what was written; if there is room for all, it is all.
func TestLimit(t *testing.T) {
	for _, files := range []int{2, 3, 5, 1 << 20} {
		t.Run(fmt.Sprint(files), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(files)))
			g := &guard{t: t, path: filepath.Join(t.TempDir(), "0.log"), limit: crilog.Limit{Size: 20000, Files: files}}
			w, err := crilog.Open(g.path, 0, g.limit, nil)
			if err != nil {
				t.Fatal(err)
			}
			var want []byte
			for i := range 6 {
				p := output(r)
				w.Write(crilog.Stdout, p, g)
				if want = append(want, p...); g.n != len(want) {
					t.Fatalf("%d bytes were reported as written, want %d", g.n, len(want))
				}
				if i%2 == 0 { // as if the executor had been replaced
					w = crilog.Resume(w.File(), g.path, 0, g.limit, nil)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			data := all(t, g.path)
			got := join(t, data, crilog.Stdout)
			if !bytes.HasSuffix(want, got) || files > 1000 && len(got) != len(want) || len(data) < 20000 {
				t.Errorf("%d bytes of %d are kept in %d, or they are others", len(got), len(want), len(data))
			}
			var heads []string
			for _, f := range logFiles(t, g.path) {
				heads = append(heads, string(f.data[:min(len(f.data), 256)]))
			}
			if slices.Sort(heads); len(slices.Compact(heads)) != len(logFiles(t, g.path)) {
				t.Error("two files begin alike")
			}
		})
	}
}

// The kubelet rotates by renaming the log and requesting a new one, and compresses and removes rotated
// files. Whatever comes in between, no line is lost or there twice.
func TestLimitBesideTheKubelet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	w, err := crilog.Open(path, 0, crilog.Limit{Size: 4000, Files: 1 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const lines = 20000
	var writers sync.WaitGroup
	for _, stream := range []string{crilog.Stdout, crilog.Stderr} {
		writers.Go(func() {
			for i := range lines {
				w.Write(stream, fmt.Appendf(nil, "%d\n", i), nil)
			}
		})
	}
	ended := make(chan struct{})
	go func() { writers.Wait(); close(ended) }()
	for i, done := 0, false; !done; i++ {
		select {
		case <-ended:
			done = true
		case <-time.After(100 * time.Microsecond):
		}
		if err := os.Rename(path, fmt.Sprint(path, i)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if i%5 == 0 {
			time.Sleep(time.Millisecond) // the container goes on writing
		}
		if err := w.Reopen(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files := logFiles(t, path)
	files = slices.DeleteFunc(files, func(f logFile) bool { return len(f.data) == 0 })
	began := func(f logFile) time.Time {
		line, _, _ := bytes.Cut(f.data, []byte("\n"))
		r, err := logread.Parse(append(line, '\n'))
		if err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		return r.Time
	}
	slices.SortStableFunc(files, func(a, b logFile) int { return began(a).Compare(began(b)) })
	var data []byte
	for _, f := range files {
		if data = append(data, f.data...); len(f.data) > 4000 {
			t.Errorf("%s has %d bytes", f.name, len(f.data))
		}
	}
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i)
	}
	for _, stream := range []string{crilog.Stdout, crilog.Stderr} {
		if got := string(join(t, data, stream)); got != want.String() {
			t.Errorf("%s: %d bytes, want %d, or they are others", stream, len(got), want.Len())
		}
	}
}

// What the kubelet or the agent has compressed counts, and so does what is being compressed. A rotated
// file gets a name after those of all others, even of one from the future.
func TestLimitCountsCompressedFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	put := func(name string, size int) {
		if err := os.WriteFile(path+name, bytes.Repeat([]byte("x"), size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(".20260101-000000.gz", 100)
	put(".20260102-000000", 1000) // its copy is unfinished: an agent was killed, or is at it
	put(".20260102-000000.tmp", 10)
	put(".20260103-000000.gz", 900)
	put(".99990104-000000.5.gz", 300)
	put(".not-a-time", 100)
	w, err := crilog.Open(path, 0, crilog.Limit{Size: 1000, Files: 5}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // 950 bytes each
		w.Write(crilog.Stdout, append(bytes.Repeat([]byte("y"), 900), '\n'), nil)
	}
	var names []string
	for _, f := range logFiles(t, path) {
		names = append(names, strings.TrimPrefix(f.name, path))
	}
	want := ".20260103-000000.gz .99990104-000000.5.gz .99990104-000000.500001 .not-a-time "
	if got := strings.Join(names, " "); got != want {
		t.Errorf("the files are %q, want %q", got, want)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// Where no new file can be made, output is lost beyond the limit, which is reported. The container does
// not wait, the log keeps its name, and the next rotation succeeds.
func TestLimitWithoutInodes(t *testing.T) {
	testenv.NeedRoot(t, "it mounts a small tmpfs")
	dir := t.TempDir()
	if err := unix.Mount("crisp-test", dir, "tmpfs", 0, "nr_inodes=2"); err != nil { // the directory and the log
		t.Skipf("needs mount: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	var failed error
	var lost int64
	path := filepath.Join(dir, "0.log")
	w, err := crilog.Open(path, 0, crilog.Limit{Size: 1000, Files: 3}, func(err error, n int64) {
		failed, lost = errors.Join(failed, err), lost+n
	})
	if err != nil {
		t.Fatal(err)
	}
	line := append(bytes.Repeat([]byte("x"), 300), '\n')
	for range 5 {
		w.Write(crilog.Stdout, line, nil)
	}
	if got := all(t, path); !errors.Is(failed, unix.ENOSPC) || len(got) > 1000 || len(logFiles(t, path)) != 1 {
		t.Fatalf("reported was %v; the log has %d bytes", failed, len(got))
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "nr_inodes=10"); err != nil {
		t.Fatal(err)
	}
	w.Write(crilog.Stdout, []byte("again\n"), nil)
	if got := string(join(t, all(t, path), crilog.Stdout)); got != strings.Repeat(string(line), 2)+"again\n" || lost != 3*int64(len(line)) {
		t.Errorf("the log has %q; %d bytes were lost", got, lost)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
