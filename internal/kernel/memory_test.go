package kernel

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/test/noleaks"
	"github.com/crisp-cri/crisp/test/testenv"
)

// Every limit between the root of a hierarchy and our cgroup counts, of both versions, and only a real one.
func TestMemoryLimit(t *testing.T) {
	const total = 1 << 30
	for name, test := range map[string]struct {
		files   map[string]string
		own     string
		version int
		want    int64
		of      string
	}{
		"v2":                       {map[string]string{"a/b/memory.max": "1000000\n"}, "/a/b", 2, 1_000_000, "a/b/memory.max"},
		"v2, above":                {map[string]string{"a/memory.max": "1000000\n", "a/b/memory.max": "max\n"}, "/a/b", 2, 1_000_000, "a/memory.max"},
		"v2, the lowest":           {map[string]string{"a/memory.max": "1000000\n", "a/b/memory.max": "2000000\n"}, "/a/b", 2, 1_000_000, "a/memory.max"},
		"v2, high":                 {map[string]string{"a/memory.max": "2000000\n", "a/memory.high": "1000000\n"}, "/a", 2, 1_000_000, "a/memory.high"},
		"v2, unlimited":            {map[string]string{"a/memory.max": "max\n", "a/memory.high": "max\n"}, "/a", 2, 0, ""},
		"v2, beside":               {map[string]string{"b/memory.max": "1000000\n"}, "/a", 2, 0, ""},
		"v2, more than there is":   {map[string]string{"a/memory.max": "2147483648\n"}, "/a", 2, 0, ""},
		"v2, in a namespace":       {map[string]string{"memory.max": "1000000\n"}, "/", 2, 1_000_000, "memory.max"},
		"v2, outside of it":        {map[string]string{"memory.max": "1000000\n"}, "/../other", 2, 0, ""},
		"v2, without a controller": {nil, "/a", 2, 0, ""},
		"v1":                       {map[string]string{"a/memory.limit_in_bytes": "1000000\n"}, "/a", 1, 1_000_000, "a/memory.limit_in_bytes"},
		"v1, above":                {map[string]string{"a/memory.limit_in_bytes": "1000000\n", "a/b/memory.limit_in_bytes": "9223372036854771712\n"}, "/a/b", 1, 1_000_000, "a/memory.limit_in_bytes"},
		"v1, unlimited":            {map[string]string{"a/memory.limit_in_bytes": "9223372036854771712\n"}, "/a", 1, 0, ""},
		"v1, part of it mounted":   {map[string]string{"memory.limit_in_bytes": "1000000\n"}, "/docker/1234", 1, 1_000_000, "memory.limit_in_bytes"},
		"no number":                {map[string]string{"a/memory.max": "much\n"}, "/a", 2, 0, ""},
	} {
		dir := t.TempDir()
		for path, text := range test.files {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755), os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		h := Hierarchy{Dir: dir, Whole: true, Controllers: []string{"memory"}, own: test.own}
		if test.version == 2 {
			h.Controllers = []string{""}
		}
		others := []Hierarchy{{Dir: "/nowhere", Controllers: []string{"cpu"}, own: "/a"}}
		got, file := memoryLimit(append(others, h), total)
		want := ""
		if test.of != "" {
			want = filepath.Join(dir, test.of)
		} else {
			test.want = total
		}
		if got != test.want || file != want {
			t.Errorf("%s: limit is %d in %s, want %d in %s", name, got, file, test.want, want)
		}
	}
}

// What a process in a cgroup with a limit does, on this kernel. The test runs itself there.
func TestLimitHeap(t *testing.T) {
	const limit, ready = 256 << 20, "CRISP_TEST_LIMIT"
	if file := os.Getenv(ready); file != "" {
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(file); err == nil {
				break
			}
		}
		LimitHeap(slog.New(slog.NewTextHandler(os.Stderr, nil)))
		fmt.Printf("limit %d\n", debug.SetMemoryLimit(-1))
		os.Exit(0)
	}
	testenv.NeedRoot(t, "it makes a cgroup")
	before, err := noleaks.Take()
	if err != nil {
		t.Fatal(err)
	}
	dir, file := limitedCgroup(t, limit)
	for _, test := range []struct {
		env    []string
		want   int64
		logged string
	}{
		{nil, limit / 10 * 9, file},
		{[]string{"GOMEMLIMIT=100MiB"}, 100 << 20, ""},
		{[]string{"GOMEMLIMIT=off"}, math.MaxInt64, ""},
	} {
		moved := filepath.Join(t.TempDir(), "moved")
		cmd := exec.Command(os.Args[0], "-test.run", "^TestLimitHeap$")
		env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOMEMLIMIT=") })
		cmd.Env = append(append(env, ready+"="+moved), test.env...)
		var out, logged strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &logged
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0)
		if err := errors.Join(err, os.WriteFile(moved, nil, 0o600), cmd.Wait()); err != nil {
			t.Fatal(err, out.String(), logged.String())
		}
		if got, want := out.String(), fmt.Sprintf("limit %d\n", test.want); got != want {
			t.Errorf("with %q it has %q, want %q", test.env, got, want)
		}
		if got := logged.String(); strings.Contains(got, "by="+test.logged+"\n") != (test.logged != "") || (got == "") != (test.logged == "") {
			t.Errorf("with %q it logs %q, want the limit of %q", test.env, got, test.logged)
		}
	}
	if err := unix.Rmdir(dir); err != nil {
		t.Error(err)
	}
	before.Check(t, func(line string) bool { return strings.Contains(line, filepath.Base(dir)) })
}

// limitedCgroup makes a cgroup with a memory limit, and returns the file that has that.
func limitedCgroup(t *testing.T, limit int64) (dir, file string) {
	t.Helper()
	all, err := Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		name := "memory.limit_in_bytes"
		if h.V2() {
			name = "memory.max"
		}
		dir := filepath.Join(h.Dir, fmt.Sprint("crisp-limit-", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Append(nil, limit), 0); err == nil {
			return dir, filepath.Join(dir, name)
		}
		if err := unix.Rmdir(dir); err != nil { // no hierarchy of memory
			t.Fatal(err)
		}
	}
	t.Fatal("no hierarchy limits memory")
	return "", ""
}
