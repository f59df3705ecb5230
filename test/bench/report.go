package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// report holds all samples of one or several runs; series are in the order of their first sample.
type report struct {
	Kernel   string            `json:"kernel"`
	CPUs     int               `json:"cpus"`
	Subject  string            `json:"subject"`
	Runs     []begin           `json:"runs"`
	Names    []string          `json:"names"`    // endpoints and engines, the columns of the tables
	Versions map[string]string `json:"versions"` // by name
	Series   []*series         `json:"series"`

	mu sync.Mutex
}

// begin is the time and the arguments of a run.
type begin struct {
	Started time.Time `json:"started"`
	Args    []string  `json:"args"`
}

// series is one row: the same thing measured at each endpoint.
type series struct {
	Group   string               `json:"group"`
	Name    string               `json:"name"`
	Unit    string               `json:"unit,omitempty"`
	Pods    int                  `json:"pods,omitempty"` // of the many phase
	Samples map[string][]float64 `json:"samples"`
}

func newReport(subject string) *report {
	var uts unix.Utsname
	unix.Uname(&uts) // fails only for a bad address
	return &report{Kernel: unix.ByteSliceToString(uts.Release[:]), CPUs: runtime.NumCPU(), Subject: subject,
		Runs: []begin{{time.Now().UTC().Truncate(time.Second), os.Args[1:]}}, Versions: map[string]string{}}
}

// version records the version of name, which gets a column. It returns an error for samples of
// another version.
func (r *report) version(name, version string) error {
	if had, ok := r.Versions[name]; ok && had != version {
		return fmt.Errorf("the samples so far are of %s %q, this is %q", name, had, version)
	}
	r.Versions[name] = version
	if !slices.Contains(r.Names, name) {
		r.Names = append(r.Names, name)
	}
	return nil
}

const manyGroup = "Many pods"

// add may be called by concurrent goroutines.
func (r *report) add(group, name, unit, endpoint string, value float64) {
	r.addSample(series{Group: group, Name: name, Unit: unit}, endpoint, value)
}

// addAt adds a sample of a runtime with this many pods.
func (r *report) addAt(name, unit, endpoint string, pods int, value float64) {
	r.addSample(series{Group: manyGroup, Name: name, Unit: unit, Pods: pods}, endpoint, value)
}

func (r *report) addSample(of series, endpoint string, value float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.find(of.Group, of.Name, of.Pods)
	if s == nil {
		s = &of
		s.Samples = map[string][]float64{}
		r.Series = append(r.Series, s)
	}
	s.Samples[endpoint] = append(s.Samples[endpoint], math.Round(value*1e4)/1e4)
}

func (r *report) find(group, name string, pods int) *series {
	for _, s := range r.Series {
		if s.Group == group && s.Name == name && s.Pods == pods {
			return s
		}
	}
	return nil
}

// load adds the samples of a file, if it exists.
func (r *report) load(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var had report
	if err := json.Unmarshal(data, &had); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if r.Subject == "" {
		r.Subject = had.Subject
	}
	if had.Kernel != r.Kernel || had.CPUs != r.CPUs || had.Subject != r.Subject {
		return fmt.Errorf("%s is of Linux %s with %d CPUs and of %s: samples of this run do not go with it", path, had.Kernel, had.CPUs, had.Subject)
	}
	r.Runs = append(had.Runs, r.Runs...)
	r.Names, r.Versions, r.Series = had.Names, had.Versions, had.Series
	return nil
}

func (r *report) save(path string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	data = bytes.ReplaceAll(data, []byte(`{"group":`), []byte("\n"+`{"group":`)) // a line for each series
	return os.WriteFile(path, append(data, '\n'), 0o644)
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

func (s *series) p50(name string) float64 { return percentile(s.Samples[name], 50) }

// moreIsBetter reports whether larger values of a unit are better.
func moreIsBetter(unit string) bool { return strings.HasSuffix(unit, "/s") }

// isOwn reports whether a name is the subject's or that of a variant of it: "crisp-v2" is one of
// "crisp". Others are peers.
func isOwn(subject, name string) bool {
	return subject != "" && (name == subject || strings.HasPrefix(name, subject+"-"))
}

// best returns the peer with the best p50, "" if none has samples.
func (s *series) best(subject string, names []string) string {
	best := ""
	for _, n := range names {
		if isOwn(subject, n) || len(s.Samples[n]) == 0 {
			continue
		}
		if best == "" || s.p50(n) < s.p50(best) != moreIsBetter(s.Unit) {
			best = n
		}
	}
	return best
}

// MarshalJSON adds each series' percentiles to the samples.
func (s *series) MarshalJSON() ([]byte, error) {
	type plain series
	type summary struct {
		N   int     `json:"n"`
		P10 float64 `json:"p10"`
		P50 float64 `json:"p50"`
		P90 float64 `json:"p90"`
		P99 float64 `json:"p99"`
	}
	out := struct {
		*plain
		Summary map[string]summary `json:"summary"`
	}{(*plain)(s), map[string]summary{}}
	for e, samples := range s.Samples {
		out.Summary[e] = summary{len(samples), percentile(samples, 10), percentile(samples, 50), percentile(samples, 90), percentile(samples, 99)}
	}
	return json.Marshal(out)
}
