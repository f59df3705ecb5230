package page

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func stat(uid string, seconds, cpu, memory, rx uint64) *cri.PodSandboxStats {
	at := int64(seconds * 1e9)
	value := func(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }
	return &cri.PodSandboxStats{
		Attributes: &cri.PodSandboxAttributes{Id: "box " + uid, Metadata: &cri.PodSandboxMetadata{Uid: uid}},
		Linux: &cri.LinuxPodSandboxStats{
			Cpu:     &cri.CpuUsage{Timestamp: at, UsageCoreNanoSeconds: value(cpu)},
			Memory:  &cri.MemoryUsage{WorkingSetBytes: value(memory)},
			Network: &cri.NetworkUsage{Timestamp: at, DefaultInterface: &cri.NetworkInterfaceUsage{RxBytes: value(rx), TxBytes: value(2 * rx)}},
		},
	}
}

// A sample is the difference of two readings of the counters. Counters that were not updated, or
// were reset, add no sample.
func TestSeries(t *testing.T) {
	var s series
	s.add(stat("u", 100, 5e9, 10, 1000))
	if len(s.samples) != 0 {
		t.Error("one look is a sample")
	}
	s.add(stat("u", 102, 6e9, 20, 3000))
	s.add(stat("u", 102, 6e9, 20, 3000))
	if len(s.samples) != 1 {
		t.Fatalf("%d samples", len(s.samples))
	}
	if got, want := s.samples[0], (sample{at: time.Unix(102, 0), cpu: 0.5, memory: 20, rx: 1000, tx: 2000}); got != want {
		t.Errorf("the sample is %+v, want %+v", got, want)
	}
	s.add(stat("u", 104, 1e9, 30, 10))
	if got := s.samples[1]; got.cpu != 0 || got.rx != 0 || got.memory != 30 {
		t.Errorf("counters that begin anew: %+v", got)
	}
	for i := range uint64(1000) {
		s.add(stat("u", 200+i, 1e9, 30, 10))
	}
	if len(s.samples) > maxSamples {
		t.Errorf("%d samples are kept", len(s.samples))
	}
}

// Pods are sampled always, and more often while a page is open and for a short time after.
func TestSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		runtime := newFake()
		for i := range maxSeries + 10 {
			runtime.stats = append(runtime.stats, stat(string(rune('a'+i)), 1, 0, 0, 0))
		}
		m := newSampler(ctx, runtime)
		asked := func(d time.Duration) int64 {
			before := runtime.asked.Load()
			time.Sleep(d)
			synctest.Wait()
			return runtime.asked.Load() - before
		}
		if n := asked(time.Hour + time.Second); n != int64(time.Hour/idleEvery)+1 {
			t.Errorf("it has asked %d times in an hour without an open page", n)
		}
		m.of("a")
		if n := asked(0); n != 1 {
			t.Errorf("it has asked %d times when a page was opened", n)
		}
		for range 10 { // requests of the page
			m.of("a")
			if n := asked(sampleFor / 2); n < int64(sampleFor/2/sampleEvery) {
				t.Errorf("it has asked %d times while a page is open", n)
			}
		}
		m.mu.Lock()
		if len(m.pods) > maxSeries {
			t.Errorf("%d pods are kept", len(m.pods))
		}
		m.mu.Unlock()
		asked(2 * sampleFor)
		if n := asked(time.Hour); n > int64(time.Hour/idleEvery)+1 {
			t.Errorf("it has asked %d times in an hour after the page was closed", n)
		}
		cancel()
		synctest.Wait()
		m.of("a")
		if n := asked(time.Hour); n != 0 {
			t.Error("it goes on after the agent has ended")
		}
	})
}

// A curve has a gap for the time in which the runtime did not answer, and a line for the limit.
func TestPlots(t *testing.T) {
	now := time.Unix(1000, 0)
	at := func(ago time.Duration, cpu float64) sample {
		return sample{at: now.Add(-ago), cpu: cpu, memory: 3e6, rx: 10, tx: 2000}
	}
	list := plots([]sample{at(plotted, 0), at(plotted-sampleEvery, 0.02), at(sampleEvery, 1.2), at(0, 0.4)}, sample{memory: 64 << 20}, now)
	if len(list) != 3 {
		t.Fatalf("%d plots", len(list))
	}
	p := list[0]
	if p.Now != "400 m" || p.Most != "2.00" || len(p.Lines) != 2 {
		t.Errorf("CPU: %+v", p)
	}
	if want := "298.0,24.2 300.0,47.4"; p.Lines[1].Points != want {
		t.Errorf("points %s, want %s", p.Lines[1].Points, want)
	}
	if m := list[1]; m.Now != "2.9 MiB" || m.Limit != "64 MiB" || m.Most != "100 MiB" || m.LimitY != "21.9" || p.Limit != "" {
		t.Errorf("memory: %+v", m)
	}
	if n := list[2]; n.Now != "in 10 B/s, out 2.0 kB/s" || len(n.Lines) != 4 {
		t.Errorf("network: %+v", n)
	}
	if plots(nil, sample{}, now) != nil {
		t.Error("there is a plot of nothing")
	}
}
