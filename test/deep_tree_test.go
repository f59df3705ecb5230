package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/tree"
)

const (
	deepLevels      = 20_000
	mostDescriptors = 500
	mostMemory      = 150 << 10 // KiB
)

// A container that makes a tree deeper than any path costs crispd no more than others: its
// usage is reported, it is removed with its image, and nothing is left on the disk.
func TestDeepTreeOfAContainer(t *testing.T) {
	n, _ := startNode(t)
	most := n.watchDescriptors(t)
	n.runDeep(t)
	// Usage is that of the last walk, so it may take a while to be right.
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		stats, err := n.runtime().ListContainerStats(t.Context(), &cri.ListContainerStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if len(stats.Stats) != 1 {
			t.Fatalf("%d containers have statistics, want 1", len(stats.Stats))
		}
		inodes := stats.Stats[0].WritableLayer.GetInodesUsed().GetValue()
		if inodes >= deepLevels {
			break
		}
		if time.Since(begin) > 2*time.Minute {
			t.Fatalf("the container's usage is %d inodes, want %d", inodes, deepLevels)
		}
	}
	if _, err := n.runtime().RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: n.ids["c"]}); err != nil {
		t.Fatal(err)
	}
	n.remove(t, "p")
	if _, err := n.images().RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: testImage}}); err != nil {
		t.Fatal(err)
	}
	// The tree is removed in the background.
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		left, err := entries(t.Context(), n.root)
		if err == nil && left < deepLevels/10 {
			break
		}
		if time.Since(begin) > 2*time.Minute {
			t.Fatalf("%d files are left on the disk (%v)", left, err)
		}
	}
	descriptors, memory := most(), peakMemory(t, n.cmd.Process.Pid)
	t.Logf("crispd had up to %d descriptors open and took up to %d KiB of memory", descriptors, memory)
	if descriptors > mostDescriptors {
		t.Errorf("crispd had %d descriptors open, want at most %d", descriptors, mostDescriptors)
	}
	if memory > mostMemory {
		t.Errorf("crispd took %d KiB of memory, want at most %d", memory, mostMemory)
	}
}

// crispd wipe removes such a tree, too.
func TestWipeOfADeepTree(t *testing.T) {
	n, config := startNode(t)
	n.runDeep(t)
	if err := n.stopDaemon(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := n.wipe(); err != nil { // fails if something is left
		t.Fatal(err)
	}
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
}

// runDeep runs container c in pod p, and returns when its tree is complete.
func (n *node) runDeep(t *testing.T) {
	t.Helper()
	n.run(t, t.Context(), "p", "host-network")
	args := []string{"p", "c", "--", "testbin", "deep", fmt.Sprint(deepLevels), "d", "print", "tree-made", "write", "/made", "", "sleep", "for-ever"}
	if err := n.createContainer(t.Context(), args); err != nil {
		t.Fatal(err)
	}
	if _, err := n.runtime().StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: n.ids["c"]}); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		resp, err := n.runtime().ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: n.ids["c"], Cmd: []string{"/testbin", "stat", "/made"}})
		if err != nil {
			t.Fatal(err)
		}
		if resp.ExitCode == 0 {
			return
		}
		if time.Since(begin) > 2*time.Minute {
			t.Fatal("the container has not made its tree")
		}
	}
}

// watchDescriptors samples the number of crispd's open files until most is called, which
// returns the highest.
func (n *node) watchDescriptors(t *testing.T) (most func() int64) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid)
	var top atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			if open, err := os.ReadDir(dir); err == nil {
				top.Store(max(top.Load(), int64(len(open))))
			}
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	end := sync.OnceFunc(func() {
		close(stop)
		<-done
	})
	t.Cleanup(end)
	return func() int64 {
		end()
		if top.Load() == 0 {
			t.Fatalf("no sample was taken in %s", dir)
		}
		return top.Load()
	}
}

// peakMemory returns the peak resident memory of a process in KiB: VmHWM of
// proc_pid_status(5).
func peakMemory(t *testing.T, pid int) (kib int64) {
	t.Helper()
	for line := range bytes.Lines(read(t, fmt.Sprintf("/proc/%d/status", pid))) {
		if _, err := fmt.Sscanf(string(line), "VmHWM: %d kB", &kib); err == nil {
			return kib
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// entries counts the files below dir. It may fail while they are being removed.
func entries(ctx context.Context, dir string) (n int, err error) {
	err = tree.Walk(ctx, dir, tree.Options{}, func(*tree.File) error {
		n++
		return nil
	})
	return n, err
}
