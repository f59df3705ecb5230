package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// report holds every sample of a run, in the order in which they were first seen.
type report struct {
	Started  time.Time         `json:"started"`
	Kernel   string            `json:"kernel"`
	CPUs     int               `json:"cpus"`
	Args     []string          `json:"args"`
	Subject  string            `json:"subject"`
	Versions map[string]string `json:"versions"`
	Series   []*series         `json:"series"`

	mu        sync.Mutex
	endpoints []string // columns of the table
}

// series is one row: the same thing measured at each endpoint.
type series struct {
	Group   string               `json:"group"`
	Name    string               `json:"name"`
	Unit    string               `json:"unit,omitempty"`
	Samples map[string][]float64 `json:"samples"`
}

func newReport(endpoints []string, subject string) *report {
	var uts unix.Utsname
	unix.Uname(&uts) // fails for a bad address only
	return &report{Started: time.Now(), Kernel: unix.ByteSliceToString(uts.Release[:]), CPUs: runtime.NumCPU(), Args: os.Args[1:],
		Subject: subject, Versions: map[string]string{}, endpoints: endpoints}
}

// add may be called by several goroutines at once.
func (r *report) add(group, name, unit, endpoint string, value float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.find(group, name)
	if s == nil {
		s = &series{Group: group, Name: name, Unit: unit, Samples: map[string][]float64{}}
		r.Series = append(r.Series, s)
	}
	s.Samples[endpoint] = append(s.Samples[endpoint], value)
}

func (r *report) find(group, name string) *series {
	for _, s := range r.Series {
		if s.Group == group && s.Name == name {
			return s
		}
	}
	return nil
}

// perPod adds, for each kind of memory, what one of n pods costs.
func (r *report) perPod(group string, n int) {
	for _, kind := range []string{"private", "PSS"} {
		none, all := r.find(group, kind+", 0 pods"), r.find(group, fmt.Sprintf("%s, %d pods", kind, n))
		if none == nil || all == nil {
			continue
		}
		for _, e := range r.endpoints {
			if len(none.Samples[e]) > 0 && len(all.Samples[e]) > 0 {
				r.add(group, kind+" per pod", "MiB", e, (percentile(all.Samples[e], 50)-percentile(none.Samples[e], 50))/float64(n))
			}
		}
	}
}

// percentile returns the smallest sample that at least p percent of the samples do not exceed (nearest rank), NaN of none.
func percentile(samples []float64, p float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// moreIsBetter tells of which units a runtime wants many.
func moreIsBetter(unit string) bool { return strings.HasSuffix(unit, "/s") }

// ratio compares the subject's p50 with that of its best peer. It returns "" if there is nothing to compare.
func (s *series) ratio(subject string, endpoints []string) string {
	own, best := percentile(s.Samples[subject], 50), ""
	for _, e := range endpoints {
		if e == subject || len(s.Samples[e]) == 0 {
			continue
		}
		v, b := percentile(s.Samples[e], 50), percentile(s.Samples[best], 50)
		if best == "" || v < b != moreIsBetter(s.Unit) {
			best = e
		}
	}
	if math.IsNaN(own) || best == "" || percentile(s.Samples[best], 50) <= 0 {
		return ""
	}
	return fmt.Sprintf("%.2f × %s", own/percentile(s.Samples[best], 50), best)
}

// cell is p50 / p90 of an endpoint's samples, p50 alone of one sample and of rates, whose p90 would be the luck of the best.
func (s *series) cell(endpoint string) string {
	samples := s.Samples[endpoint]
	switch {
	case len(samples) == 0:
		return "–"
	case len(samples) == 1 || moreIsBetter(s.Unit):
		return number(percentile(samples, 50))
	}
	return number(percentile(samples, 50)) + " / " + number(percentile(samples, 90))
}

// number writes three significant digits and no more decimals than two.
func number(v float64) string {
	switch a := math.Abs(v); {
	case v == math.Trunc(v) || a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// markdown writes a table with a column for each endpoint, one for the ratio, and a line for each series.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, Linux %s, %d CPUs. p50 / p90.", r.Started.UTC().Format("2006-01-02 15:04 MST"), r.Kernel, r.CPUs)
	for _, e := range r.endpoints {
		fmt.Fprintf(&b, " %s is %s.", e, r.Versions[e])
	}
	fmt.Fprintf(&b, "\n\n| | %s | %s : best peer |\n|---|%s---|\n", strings.Join(r.endpoints, " | "), r.Subject, strings.Repeat("---|", len(r.endpoints)))
	group := ""
	for _, s := range r.Series {
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&b, "| **%s** |%s |\n", group, strings.Repeat(" |", len(r.endpoints)))
		}
		b.WriteString("| " + s.Name)
		if s.Unit != "" {
			b.WriteString(", " + s.Unit)
		}
		for _, e := range r.endpoints {
			b.WriteString(" | " + s.cell(e))
		}
		fmt.Fprintf(&b, " | %s |\n", s.ratio(r.Subject, r.endpoints))
	}
	return b.String()
}

// MarshalJSON adds each series' percentiles to the samples.
func (s *series) MarshalJSON() ([]byte, error) {
	type plain series
	type summary struct {
		N   int     `json:"n"`
		P50 float64 `json:"p50"`
		P90 float64 `json:"p90"`
	}
	out := struct {
		*plain
		Summary map[string]summary `json:"summary"`
	}{(*plain)(s), map[string]summary{}}
	for e, samples := range s.Samples {
		out.Summary[e] = summary{len(samples), percentile(samples, 50), percentile(samples, 90)}
	}
	return json.Marshal(out)
}
