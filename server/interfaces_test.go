package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// The counters of a pod's network are opened once, and closed when the pod is stopped, or crispd
// ends: they keep the pod's network namespace alive.
func TestInterfaceCountersEndWithTheirPod(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	n := newNode(t)
	id := n.run(t, pod("a"))
	sb, err := n.runtime.Sandbox(id)
	if err != nil {
		t.Fatal(err)
	}
	ns := sb.NetNS()
	if err := os.MkdirAll(filepath.Dir(ns), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/proc/self/ns/net", ns, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(ns, unix.MNT_DETACH)
	look := func(present bool, open int) {
		t.Helper()
		for range 2 {
			resp, err := n.PodSandboxStats(t.Context(), &cri.PodSandboxStatsRequest{PodSandboxId: id})
			if err != nil {
				t.Fatal(err)
			}
			if got := resp.Stats.Linux.Network.GetTimestamp() > 0; got != present {
				t.Errorf("there are counters: %v, want %v", got, present)
			}
		}
		if got := openCounters(t); got != open {
			t.Errorf("%d counters are open, want %d", got, open)
		}
	}
	look(true, 1)
	n.restart(t)
	if got := openCounters(t); got != 0 {
		t.Errorf("after a restart %d counters are open", got)
	}
	look(true, 1)
	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Fatal(err)
	}
	look(false, 0)
}

// openCounters counts the open files of network counters.
func openCounters(t *testing.T) (n int) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "/proc/") && strings.HasSuffix(to, "/net/dev") {
			n++
		}
	}
	return n
}
