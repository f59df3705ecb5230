package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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

func sampleReport(t *testing.T) *report {
	t.Helper()
	r := newReport("crisp")
	r.Kernel, r.CPUs, r.Runs = "6.18.0", 2, []begin{{Started: time.Unix(0, 0).UTC(), Args: []string{"-rounds", "2"}}}
	for name, version := range map[string]string{"crisp": "crisp 1", "containerd": "containerd 2", "crun": "crun 3"} {
		if err := r.version(name, version); err != nil {
			t.Fatal(err)
		}
	}
	r.Names = []string{"crisp", "containerd", "crun"}
	const pod, churn = "One restricted pod, host network", "Churn, restricted pods, host network"
	for _, v := range []float64{10, 20} {
		r.add(pod, "StartContainer", "ms", "crisp", v)
		r.add(pod, "StartContainer", "ms", "containerd", 4*v)
	}
	r.add(churn, "pods up and down, 10 workers", "pods/s", "crisp", 33.33333)
	r.add(churn, "pods up and down, 10 workers", "pods/s", "containerd", 10)
	r.add("Memory", "PSS, 0 pods", "MiB", "crisp", 34)
	r.add("Memory", "processes, 0 pods", "", "crisp", 2)
	r.add("Memory", "PSS, 0 pods", "MiB", "containerd", 50)
	r.add("OCI runtime alone", "create", "ms", "crun", 1234.5)
	for pods, v := range map[int]float64{10: 30, 1000: 60} {
		r.addAt("pod up", "ms", "crisp", pods, v)
		r.addAt("ListContainers", "ms", "crisp", pods, v)
		r.addAt("PSS", "MiB", "crisp", pods, v)
	}
	r.addAt("pod up", "ms", "containerd", 10, 200)
	return r
}

func TestMarkdown(t *testing.T) {
	const want = `1970-01-01 00:00 UTC, Linux 6.18.0, 2 CPUs. p50 (p10–p90). crisp is crisp 1. containerd is containerd 2. crun is crun 3.

| One restricted pod, host network | crisp | containerd | crisp : best peer | must reach |
|---|---|---|---|---|
| StartContainer, ms | 10 (10–20) | 40 (40–80) | 0.25 × containerd | ≤ 0.70 ✓ |

| Churn, restricted pods, host network | crisp | containerd | crisp : best peer | must reach |
|---|---|---|---|---|
| pods up and down, 10 workers, pods/s | 33.3 | 10 | 3.33 × containerd | ≥ 4.50 ✗ |

| Memory | crisp | containerd | crisp : best peer | must reach |
|---|---|---|---|---|
| PSS, 0 pods, MiB | 34 | 50 | 0.68 × containerd | ≤ 35 ✓ |
| processes, 0 pods | 2 | – |  |  |

| OCI runtime alone | crun |
|---|---|
| create, ms | 1234 |

| Many pods | of | 10 | 1000 | most : fewest | must reach |
|---|---|---|---|---|---|
| ListContainers, ms | crisp | 30 | 60 | 2 | ≤ 130 ✓ |
| PSS, MiB | crisp | 30 | 60 | 2 |  |
| pod up, ms | crisp | 30 | 60 | 2 | ≤ 1.30 ✗ |
| pod up, ms | containerd | 200 | – | 1 |  |
`
	if d := cmp.Diff(want, sampleReport(t).markdown()); d != "" {
		t.Error(d)
	}
}

func TestBest(t *testing.T) {
	s := &series{Unit: "ms", Samples: map[string][]float64{"a": {1}, "b": {3}, "c": {2}}}
	if got := s.best("a", []string{"a", "b", "c", "d"}); got != "c" {
		t.Errorf("best of milliseconds is %q", got)
	}
	s.Unit = "pods/s"
	if got := s.best("a", []string{"a", "b", "c", "d"}); got != "b" {
		t.Errorf("best of a rate is %q", got)
	}
	if got := s.best("a", []string{"a"}); got != "" {
		t.Errorf("have best peer %q without a peer", got)
	}
}

// A pull makes few calls slow: the table has to show those.
func TestBesidePullsTheSlowOnesAreShown(t *testing.T) {
	r := newReport("crisp")
	r.Names = []string{"crisp", "crio"}
	for i := range 100 {
		r.add(besideGroup, "whole pod up", "ms", "crisp", float64(i+1))
		r.add(besideGroup, "whole pod up", "ms", "crio", 200+float64(i))
	}
	const want = "| whole pod up, ms | 50 (p90 90, p99 99) | 249 (p90 289, p99 298) | 0.20 × crio | ≤ 0.30 ✓, p90 ≤ 0.35 ✓ |"
	if got := r.markdown(); !strings.Contains(got, want) {
		t.Errorf("have\n%s\nnot\n%s", got, want)
	}
}

// A variant of the subject is not a peer, and has its own ratio.
func TestVariants(t *testing.T) {
	r := sampleReport(t)
	r.Names = append(r.Names, "crisp-v2")
	r.add("One restricted pod, host network", "StartContainer", "ms", "crisp-v2", 5)
	const want = `
| One restricted pod, host network | crisp | containerd | crisp-v2 | crisp : best peer | must reach | crisp-v2 : best peer | must reach |
|---|---|---|---|---|---|---|---|
| StartContainer, ms | 10 (10–20) | 40 (40–80) | 5 | 0.25 × containerd | ≤ 0.70 ✓ | 0.12 × containerd | ≤ 0.70 ✓ |
`
	if got := r.markdown(); !strings.Contains(got, want) {
		t.Errorf("have\n%s\nnot\n%s", got, want)
	}
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.json")
	had := sampleReport(t)
	if err := had.save(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"group":"One restricted pod, host network","name":"StartContainer","unit":"ms","samples":{"containerd":[40,80],"crisp":[10,20]},` +
		`"summary":{"containerd":{"n":2,"p10":40,"p50":40,"p90":80,"p99":80},"crisp":{"n":2,"p10":10,"p50":10,"p90":20,"p99":20}}}`
	if !strings.Contains(string(data), want) || !json.Valid(data) {
		t.Errorf("have %s\nwant in it %s", data, want)
	}

	r := newReport("")
	r.Kernel, r.CPUs = had.Kernel, had.CPUs
	if err := r.load(path); err != nil {
		t.Fatal(err)
	}
	if len(r.Runs) != 2 || !r.Runs[0].Started.Equal(had.Runs[0].Started) {
		t.Errorf("have runs %v, want that of the file and this one", r.Runs)
	}
	r.Runs = had.Runs
	if d := cmp.Diff(had, r, cmpopts.IgnoreUnexported(report{})); d != "" {
		t.Error(d)
	}
	r.add("Memory", "PSS, 0 pods", "MiB", "crisp", 36)
	if got := r.find("Memory", "PSS, 0 pods", 0).Samples["crisp"]; len(got) != 2 {
		t.Errorf("have samples %v, want that of the file and the new one", got)
	}
	if err := r.version("containerd", "containerd 2"); err != nil {
		t.Errorf("the same version: %v", err)
	}
	if err := r.version("containerd", "containerd 3"); err == nil {
		t.Error("samples of another version were taken")
	}
}

func TestLoadOfAnotherMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.json")
	r := sampleReport(t)
	if err := r.load(path); err != nil {
		t.Errorf("no file yet: %v", err)
	}
	if err := r.save(path); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(r *report){
		"kernel":  func(r *report) { r.Kernel = "7.0" },
		"CPUs":    func(r *report) { r.CPUs = 64 },
		"subject": func(r *report) { r.Subject = "containerd" },
	} {
		other := sampleReport(t)
		change(other)
		if err := other.load(path); err == nil {
			t.Errorf("samples of another %s were taken", what)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.load(path); err == nil {
		t.Error("half a file was taken")
	}
}

func TestVerdict(t *testing.T) {
	for _, test := range []struct {
		goal      goal
		own, best float64
		want      string
	}{
		{goal{bound: 0.35}, 35, 100, "≤ 0.35 ✓"},
		{goal{bound: 0.35}, 36, 100, "≤ 0.35 ✗"},
		{goal{bound: 0.35}, 36, math.NaN(), "≤ 0.35"},
		{goal{bound: 4, least: true}, 40, 10, "≥ 4 ✓"},
		{goal{bound: 4, least: true}, 39, 10, "≥ 4 ✗"},
		{goal{bound: 38, figure: true}, 38, math.NaN(), "≤ 38 ✓"},
		{goal{bound: 38, figure: true}, 39, 1000, "≤ 38 ✗"},
	} {
		if got := test.goal.verdict(test.own, test.best); got != test.want {
			t.Errorf("%+v of %v beside %v: %q, want %q", test.goal, test.own, test.best, got, test.want)
		}
	}
}

// Every goal is for a row of some phase; otherwise it would never be checked.
func TestGoalsAreOfRows(t *testing.T) {
	o, err := parseFlags([]string{"-endpoint", "a=u"})
	if err != nil {
		t.Fatal(err)
	}
	groups := map[string]bool{"Memory": true, "ExecSync true": true, "Pull": true, besideGroup: true,
		listGroup(o.pods): true, netGroup("One pod without seccomp", "host"): true}
	for _, net := range allNets {
		groups[netGroup("One restricted pod", net)] = true
		groups[netGroup("Churn, restricted pods", net)] = true
	}
	for _, shim := range []string{"gvisor", "runc"} {
		groups[handlerGroup(shim)] = true
	}
	for _, g := range goals {
		if !groups[g.group] {
			t.Errorf("no phase has the group %q", g.group)
		}
	}
}

func TestPlot(t *testing.T) {
	svg := sampleReport(t).svg()
	for _, want := range []string{"pod up, ms", "ListContainers, ms", "PSS, MiB", ">1000<", ">containerd<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the plot lacks %q", want)
		}
	}
	// A curve ends at the right edge, with the most pods; 60 of 200 is at a quarter of the panel's
	// height.
	if want := `points="44.0,153.2 288.0,130.4"`; !strings.Contains(svg, want) {
		t.Errorf("the plot lacks the curve %s:\n%s", want, svg)
	}
	for v, want := range map[float64]float64{0: 1, 1: 1, 1.01: 1.5, 84: 100, 200: 200, 0.0021: 0.0025} {
		if got := roundUp(v); math.Abs(got-want) > want/1e9 {
			t.Errorf("roundUp(%v) = %v, want %v", v, got, want)
		}
	}
}
