package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Ten workers attach and detach pods concurrently, in a subnet with few spare addresses and with
// fewer host ports than they request: no two pods have the same address or port at the same time,
// and nothing is left.
func TestChurn(t *testing.T) {
	o := options(t, "")
	o.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("192.168.77.0/28")}
	n := open(t, o)
	var used sync.Map // address or port → pod
	var refused atomic.Int32
	var wg sync.WaitGroup
	for worker := range 10 {
		wg.Go(func() {
			path, unpin := namespace(t)
			for round := range 10 {
				if round%3 == 0 { // alternate between a new namespace and reusing the old one for another pod
					unpin()
					path, unpin = namespace(t)
				}
				p := Pod{ID: fmt.Sprintf("%d-%d", worker, round), NetNS: path}
				if round%2 == 0 {
					p.Ports = []Port{{Protocol: "udp", ContainerPort: 53, HostPort: int32(20000 + worker%4)}}
				}
				r, err := n.Attach(t.Context(), p)
				if errors.Is(err, fault.Exists) && p.Ports != nil {
					refused.Add(1)
					p.Ports = nil
					r, err = n.Attach(t.Context(), p)
				}
				if err != nil {
					t.Errorf("attach %s: %v", p.ID, err)
					return
				}
				var mine []any
				for _, ip := range r.IPs {
					mine = append(mine, ip)
				}
				for _, port := range p.Ports {
					mine = append(mine, port.HostPort)
				}
				for _, key := range mine {
					if other, taken := used.LoadOrStore(key, p.ID); taken {
						t.Errorf("%s and %s have %v", p.ID, other, key)
					}
				}
				if err := n.Check(t.Context(), p); err != nil { // while others are attached and detached
					t.Errorf("check %s: %v", p.ID, err)
				}
				for _, key := range mine {
					used.CompareAndDelete(key, p.ID)
				}
				detach(t, n, p)
			}
		})
	}
	wg.Wait()
	if refused.Load() == 0 {
		t.Error("no host port was refused: the workers did not overlap")
	}
	destroy(t, n)
}

// Two pods cannot have one host port; the second gets it after the first was detached. Its failure
// before that leaves nothing.
func TestHostPortIsTaken(t *testing.T) {
	o := options(t, "")
	n := open(t, o)
	a, b := pod(t, "a"), pod(t, "b")
	a.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12000}}
	b.Ports = []Port{{Protocol: "udp", ContainerPort: 80, HostPort: 12000}, {Protocol: "tcp", ContainerPort: 81, HostPort: 12000}}
	attached := attach(t, n, a)
	if _, err := n.Attach(t.Context(), b); !errors.Is(err, fault.Exists) {
		t.Fatalf("attach: %v, want Exists", err)
	}
	if got := addressesInUse(o); len(got) != len(attached.IPs) {
		t.Errorf("addresses in use are %v, want those of one pod", got)
	}
	detach(t, n, a)
	attach(t, n, b)
	serve(t, b.NetNS, 81)
	wantAsk(t, "", "127.0.0.1:12000", "")
	detach(t, n, b)
	destroy(t, n)
}

// A firewall that flushes the ruleset removes the host ports, too; the next ADD restores those of
// all pods.
func TestHostPortsSurviveAFlush(t *testing.T) {
	n := open(t, options(t, ""))
	a, b := pod(t, "a"), pod(t, "b")
	a.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12000}}
	attach(t, n, a)
	serve(t, a.NetNS, 80)
	nft(t, "flush ruleset")
	if err := n.Check(t.Context(), a); err == nil {
		t.Error("check reports no error without a table")
	}
	attach(t, n, b)
	wantAsk(t, "", "127.0.0.1:12000", "")
	nft(t, "flush ruleset")
	detach(t, n, a)
	detach(t, n, b)
	destroy(t, n)
}

// If the daemon dies after the plugin has finished but before libcni has saved the result, the next
// daemon finds and undoes all of it.
func TestCrashAfterAdd(t *testing.T) {
	o := options(t, "")
	n := open(t, o)
	p := pod(t, "p")
	p.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12000}}
	p.EgressBPS = 1e6
	attach(t, n, p)
	if err := os.Remove(filepath.Join(o.CacheDir, "results", "crisp-p-eth0")); err != nil {
		t.Fatal(err)
	}
	n2 := open(t, o)
	detach(t, n2, Pod{ID: "p"})
	destroy(t, n2)
}

// A full subnet is an error that leaves nothing, and its last free address is found wherever it is.
func TestSmallSubnet(t *testing.T) {
	o := options(t, "")
	o.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("192.168.77.0/29")}
	n := open(t, o)
	var pods []Pod
	for i := range 5 { // .2 to .6
		p := pod(t, fmt.Sprint(i))
		attach(t, n, p)
		pods = append(pods, p)
	}
	last := pod(t, "last")
	if _, err := n.Attach(t.Context(), last); err == nil {
		t.Fatal("a sixth address of five")
	}
	detach(t, n, pods[2])
	if r := attach(t, n, last); r.IPs[0] != netip.MustParseAddr("192.168.77.4") {
		t.Errorf("got %v, want the only free address", r.IPs)
	}
	for _, p := range append(pods, last) {
		detach(t, n, p)
	}
	destroy(t, n)
}

// BenchmarkAttachDetach attaches and detaches a pod without host ports: with the
// default network, and with the standard plugins that it replaces.
func BenchmarkAttachDetach(b *testing.B) {
	b.Run("default", func(b *testing.B) {
		n := open(b, options(b, ""))
		benchmarkPods(b, n)
		destroy(b, n)
	})
	b.Run("standard", func(b *testing.B) {
		o := options(b, "")
		b.Cleanup(func() {
			nft(b, "flush ruleset")
			removeBridge(b, "br-test")
		})
		o.BinDirs = []string{standardPlugins(b)}
		writeConf(b, o.ConfDir, "10-standard.conflist", standardConf(o.DataDir, false))
		benchmarkPods(b, open(b, o))
	})
}

func benchmarkPods(b *testing.B, n *Network) {
	var attaching, detaching time.Duration
	for i := 0; b.Loop(); i++ {
		path, unpin := namespace(b)
		p := Pod{ID: fmt.Sprint(i), NetNS: path}
		begin := time.Now()
		attach(b, n, p)
		attaching += time.Since(begin)
		begin = time.Now()
		detach(b, n, p)
		detaching += time.Since(begin)
		unpin()
	}
	b.ReportMetric(float64(attaching.Microseconds())/float64(b.N), "µs/attach")
	b.ReportMetric(float64(detaching.Microseconds())/float64(b.N), "µs/detach")
}
