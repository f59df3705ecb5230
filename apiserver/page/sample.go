package page

import (
	"context"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/internal/poke"
)

// The usage of pods is sampled always, so that a page that is opened shows what happened before, and
// more often while a page that shows it is open, and shortly after.
const (
	idleEvery   = 10 * time.Second
	sampleEvery = 2 * time.Second
	sampleFor   = 20 * time.Second // after the last request for such a page
	plotted     = 5 * time.Minute
	maxSeries   = 512 // pods; others are not sampled
	maxSamples  = int(plotted / sampleEvery)
)

// A sample is a pod's usage at a time.
type sample struct {
	at     time.Time
	cpu    float64 // cores
	memory float64 // bytes
	rx, tx float64 // bytes per second
}

// A series is a pod's samples, the newest last.
type series struct {
	last    *cri.PodSandboxStats // the counters at the last sample
	samples []sample
}

// A sampler keeps the samples of pods, by UID.
type sampler struct {
	ctx     context.Context // the agent's
	runtime Runtime

	wake chan struct{} // a page was opened; of capacity 1

	mu     sync.Mutex
	pods   map[string]*series // guarded by mu, as is looked
	looked time.Time
}

func newSampler(ctx context.Context, r Runtime) *sampler {
	m := &sampler{ctx: ctx, runtime: r, wake: make(chan struct{}, 1), pods: map[string]*series{}}
	go m.loop()
	return m
}

// of returns a pod's samples that are not older than plotted, and has it sampled more often.
func (m *sampler) of(uid string) []sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.looked) >= sampleFor {
		poke.Wake(m.wake)
	}
	m.looked = time.Now()
	s := m.pods[uid]
	if s == nil {
		return nil
	}
	oldest := time.Now().Add(-plotted)
	for len(s.samples) > 0 && s.samples[0].at.Before(oldest) {
		s.samples = s.samples[1:]
	}
	return append([]sample(nil), s.samples...)
}

// last returns a pod's last sample, nil without one.
func (m *sampler) last(uid string) *sample {
	if samples := m.of(uid); len(samples) > 0 {
		return &samples[len(samples)-1]
	}
	return nil
}

func (m *sampler) loop() {
	for m.ctx.Err() == nil {
		m.take()
		m.mu.Lock()
		every := idleEvery
		if time.Since(m.looked) < sampleFor {
			every = sampleEvery
		}
		m.mu.Unlock()
		next := time.NewTimer(every)
		select {
		case <-next.C:
		case <-m.wake:
		case <-m.ctx.Done():
		}
		next.Stop()
	}
}

// take samples each pod. If the runtime does not answer there is no sample.
func (m *sampler) take() {
	runtime, _, err := m.runtime.Runtime()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(m.ctx, 5*sampleEvery)
	defer cancel()
	list, err := criruntime.PodStats(ctx, runtime)
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.pods
	m.pods = map[string]*series{}
	for _, now := range list {
		uid := now.GetAttributes().GetMetadata().GetUid()
		if len(m.pods) == maxSeries {
			return
		}
		s := old[uid]
		if s == nil {
			s = &series{}
		}
		m.pods[uid] = s
		s.add(now)
	}
}

// add appends a sample of the usage between the last counters and now, unless the runtime has not
// updated its counters.
func (s *series) add(now *cri.PodSandboxStats) {
	was := s.last
	if was == nil || was.GetAttributes().GetId() != now.GetAttributes().GetId() {
		s.last = now
		return
	}
	cpu, before := now.GetLinux().GetCpu(), was.GetLinux().GetCpu()
	if cpu.GetTimestamp() <= before.GetTimestamp() {
		return
	}
	s.last = now
	net, netBefore := now.GetLinux().GetNetwork(), was.GetLinux().GetNetwork()
	seconds := time.Duration(net.GetTimestamp() - netBefore.GetTimestamp()).Seconds()
	in, out := net.GetDefaultInterface(), netBefore.GetDefaultInterface()
	s.samples = append(s.samples, sample{
		at:     time.Unix(0, cpu.GetTimestamp()),
		cpu:    rate(cpu.GetUsageCoreNanoSeconds(), before.GetUsageCoreNanoSeconds(), float64(cpu.GetTimestamp()-before.GetTimestamp())),
		memory: float64(now.GetLinux().GetMemory().GetWorkingSetBytes().GetValue()),
		rx:     rate(in.GetRxBytes(), out.GetRxBytes(), seconds),
		tx:     rate(in.GetTxBytes(), out.GetTxBytes(), seconds),
	})
	if len(s.samples) > maxSamples {
		s.samples = s.samples[len(s.samples)-maxSamples:]
	}
}

// rate returns the growth of a counter per unit of passed; 0 if it was reset.
func rate(now, before *cri.UInt64Value, passed float64) float64 {
	if passed <= 0 || now.GetValue() < before.GetValue() {
		return 0
	}
	return float64(now.GetValue()-before.GetValue()) / passed
}
