package oci

import (
	"errors"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/testenv"
)

// Only a listener at exactly the path counts: a path may have spaces, and be the end of another.
func TestListening(t *testing.T) {
	table := filepath.Join(t.TempDir(), "unix")
	if err := os.WriteFile(table, []byte(`Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 101 /run/a b/executor.sock
0000000000000000: 00000003 00000000 00000000 0001 03 102 /run/a b/executor.sock
0000000000000000: 00000002 00000000 00010000 0001 01 103 /x /run/a b/executor.sock
0000000000000000: 00000002 00000000 00010000 0001 01 104 /x/run/a b/executor.sock
0000000000000000: 00000003 00000000 00000000 0001 03 105
0000000000000000: 00000002 00000000 00010000 0001 01 106 /run/a b/executor.sock
`), 0o600); err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(maps.Keys(listening(table, "/run/a b/executor.sock")))
	if want := []string{"socket:[101]", "socket:[106]"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := listening(filepath.Join(t.TempDir(), "none"), "/x"); len(got) > 0 {
		t.Errorf("without a table: %v", got)
	}
}

// No second executor is started while the first has lost its socket and lock: both would manage the
// same containers. The first one gets time to recreate them.
func TestNoSecondExecutorIsStarted(t *testing.T) {
	testenv.NeedRoot(t, "it makes a cgroup")
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	program := filepath.Join(dir, "executor")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n: >"+started+"\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := &spawner{path: program, state: dir, cgroup: executorCgroup(dir), log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	socket := filepath.Join(dir, "executor.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	executor := exec.Command("sleep", "600")
	executor.ExtraFiles = []*os.File{file}
	if err := executor.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		executor.Process.Kill()
		executor.Wait()
	})
	defer end()
	file.Close()
	l.Close() // which removes the socket
	if pid := s.found(socket); pid != 0 {
		t.Fatalf("process %d is found, which is in another cgroup", pid)
	}
	if err := makeCgroup(s.cgroup); err != nil {
		t.Fatal(err)
	}
	dirs, err := cgroupDirs(s.cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		end()
		if err := removeCgroups("executor", dirs); err != nil {
			t.Error(err)
		}
	}()
	own := dirs[slices.Sorted(maps.Keys(dirs))[0]]
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte(strconv.Itoa(executor.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	if pid := s.found(socket); pid != executor.Process.Pid {
		t.Errorf("found process %d, want %d", pid, executor.Process.Pid)
	}
	dialled := make(chan error, 1)
	go func() {
		_, err := s.dial(t.Context())
		dialled <- err
	}()
	time.Sleep(200 * time.Millisecond) // in which a wrong crispd would start another
	select {
	case err := <-dialled:
		t.Fatalf("crispd does not wait: %v", err)
	default:
	}
	if testenv.Exists(started) {
		t.Error("a second executor was started")
	}

	// It ends after all, and the next one is started.
	end()
	if err := <-dialled; !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("got %v", err)
	}
	if !testenv.Exists(started) {
		t.Error("no other executor was started")
	}
}
