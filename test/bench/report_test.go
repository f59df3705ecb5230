package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPercentile(t *testing.T) {
	ten := []float64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}
	for _, test := range []struct {
		samples []float64
		p, want float64
	}{
		{ten, 50, 5},
		{ten, 90, 9},
		{ten, 100, 10},
		{ten, 0, 1},
		{[]float64{3}, 90, 3},
		{[]float64{3, 1, 2}, 50, 2},
	} {
		if got := percentile(test.samples, test.p); got != test.want {
			t.Errorf("percentile(%v, %v) = %v, want %v", test.samples, test.p, got, test.want)
		}
	}
	if !math.IsNaN(percentile(nil, 50)) {
		t.Error("no samples have a percentile")
	}
	if ten[0] != 10 {
		t.Error("percentile sorted its argument")
	}
}

func sampleReport() *report {
	r := newReport([]string{"crisp", "containerd", "crio"}, "crisp")
	r.Started, r.Kernel, r.CPUs, r.Args = time.Unix(0, 0), "6.18.0", 2, nil
	r.Versions = map[string]string{"crisp": "crisp 1", "containerd": "containerd 2", "crio": "cri-o 1"}
	for _, v := range []float64{10, 20} {
		r.add("One pod", "StartContainer", "ms", "crisp", v)
		r.add("One pod", "StartContainer", "ms", "containerd", 4*v)
		r.add("One pod", "StartContainer", "ms", "crio", 5*v)
	}
	r.add("Throughput", "up and down", "pods/s", "crisp", 33.333)
	r.add("Throughput", "up and down", "pods/s", "containerd", 10)
	r.add("Throughput", "up and down", "pods/s", "crio", 16.6667)
	r.add("Throughput", "up and down", "pods/s", "crio", 20)
	r.add("Pull", "PullImage", "ms", "crio", 1234.5)
	for e, perPod := range map[string]float64{"crisp": 0.08, "containerd": 4.3} {
		r.add("Memory", "private, 0 pods", "MiB", e, 40)
		r.add("Memory", "private, 50 pods", "MiB", e, 40+50*perPod)
	}
	r.perPod("Memory", 50)
	return r
}

func TestMarkdown(t *testing.T) {
	const want = `1970-01-01 00:00 UTC, Linux 6.18.0, 2 CPUs. p50 / p90. crisp is crisp 1. containerd is containerd 2. crio is cri-o 1.

| | crisp | containerd | crio | crisp : best peer |
|---|---|---|---|---|
| **One pod** | | | | |
| StartContainer, ms | 10 / 20 | 40 / 80 | 50 / 100 | 0.25 × containerd |
| **Throughput** | | | | |
| up and down, pods/s | 33.3 | 10 | 16.7 | 2.00 × crio |
| **Pull** | | | | |
| PullImage, ms | – | – | 1234 |  |
| **Memory** | | | | |
| private, 0 pods, MiB | 40 | 40 | – | 1.00 × containerd |
| private, 50 pods, MiB | 44 | 255 | – | 0.17 × containerd |
| private per pod, MiB | 0.08 | 4.30 | – | 0.02 × containerd |
`
	if d := cmp.Diff(want, sampleReport().markdown()); d != "" {
		t.Error(d)
	}
}

func TestRatioOfOneEndpoint(t *testing.T) {
	s := &series{Samples: map[string][]float64{"a": {1}}}
	if got := s.ratio("a", []string{"a"}); got != "" {
		t.Errorf("have ratio %q without a peer", got)
	}
}

func TestJSON(t *testing.T) {
	data, err := json.Marshal(sampleReport())
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"group":"One pod","name":"StartContainer","unit":"ms","samples":{"containerd":[40,80],"crio":[50,100],"crisp":[10,20]},` +
		`"summary":{"containerd":{"n":2,"p50":40,"p90":80},"crio":{"n":2,"p50":50,"p90":100},"crisp":{"n":2,"p50":10,"p90":20}}}`
	if !strings.Contains(string(data), want) {
		t.Errorf("have %s\nwant in it %s", data, want)
	}
}
