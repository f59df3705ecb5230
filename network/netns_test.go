package network

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/network/netns"
)

// Changes in a pod's namespace stay there, whatever thread makes them: twenty goroutines use ten
// namespaces and the host's concurrently.
func TestEnterKeepsThreadsApart(t *testing.T) {
	needsRoot(t)
	mark := func(name string) func() error {
		return func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			return netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs})
		}
	}
	var paths []string
	for range 10 {
		path, _ := namespace(t)
		if err := netns.Enter(path, mark("mine")); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	host := linkNames(t)
	var wg sync.WaitGroup
	for _, path := range paths {
		for range 2 {
			wg.Go(func() {
				for range 20 {
					stats, err := readCounters(path)
					if err != nil || len(stats) != 1 || stats[0].Name != "mine" {
						t.Errorf("stats of %s: %v (err %v)", path, stats, err)
					}
					if links := linkNames(t); !slices.Equal(links, host) {
						t.Errorf("the host has %v", links)
					}
				}
			})
		}
	}
	wg.Wait()
	if _, err := readCounters(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fault.NotFound) {
		t.Errorf("stats of no namespace: %v", err)
	}
	if _, err := readCounters("/proc/self/ns/uts"); err == nil {
		t.Error("stats of a uts namespace")
	}
}

// Dial tries both loopback addresses of the namespace, and nothing else.
func TestDial(t *testing.T) {
	needsRoot(t)
	path, _ := namespace(t)
	if err := loopbackUp(path); err != nil {
		t.Fatal(err)
	}
	serve(t, path, 80)
	serveOn(t, path, "[::1]:81")
	serve(t, "", 82)
	for _, c := range []struct {
		netns string
		port  int32
		ok    bool
	}{
		{path, 80, true}, {path, 81, true}, {path, 82, false},
		{"", 80, false}, {"", 81, false}, {"", 82, true},
	} {
		conn, err := Dial(t.Context(), c.netns, c.port)
		if (err == nil) != c.ok {
			t.Errorf("port %d in %q: %v", c.port, c.netns, err)
		}
		if err == nil {
			if _, err := io.ReadAll(conn); err != nil {
				t.Error(err)
			}
			conn.Close()
		}
	}
}
