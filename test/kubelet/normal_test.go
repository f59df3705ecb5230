package kubelet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// aSession returns a session of one pod with one container with these resources, after a failed
// creation.
func aSession(t *testing.T, driver, resources string) *record {
	t.Helper()
	var calls []call
	begin := time.Now()
	add := func(method, request, response, err string) {
		calls = append(calls, call{Method: method, Request: []byte(request), Response: []byte(response), Err: err, Begin: begin, End: begin})
		begin = begin.Add(time.Second)
	}
	create := func(id, err string) {
		add("CreateContainer", fmt.Sprintf(`{"pod_sandbox_id":"1111","config":{"metadata":{"name":"main"},"linux":{"resources":%s}}}`, resources),
			fmt.Sprintf(`{"container_id":%q}`, id), err)
	}
	add("RunPodSandbox", `{"config":{"metadata":{"name":"a","uid":"u"}}}`, `{"pod_sandbox_id":"1111"}`, "")
	create("", "no space left")
	create("2222", "")
	return recordsOf(t, &session{Driver: driver, Dir: "/node", Calls: calls, Pods: map[string]*v1.Pod{"a": {}}})["a"]
}

// Numbers in requests are not mistaken for hashes, however many digits they have.
func TestLimitsAreCompared(t *testing.T) {
	for _, limits := range [][2]int64{{64 << 20, 32 << 20}, {2 << 20, 4 << 20}, {128 << 20, 256 << 20}, {1e6, 2e6}} {
		name := fmt.Sprintf("%d and %d", limits[0], limits[1])
		resources := func(limit int64) string { return fmt.Sprintf(`{"memory_limit_in_bytes":"%d"}`, limit) }
		got := compare("a", aSession(t, "kubelet", resources(limits[0])), aSession(t, "agent", resources(limits[1])))
		want := fmt.Sprintf(`a CreateContainer main#0 config.linux.resources.memory_limit_in_bytes: kubelet "%d", agent "%d"`, limits[0], limits[1])
		if !slices.Contains(got, want) {
			t.Errorf("%s: the differences are %q, not %q", name, got, want)
		}
	}
}

// A failed creation has no ID, and the empty ID is not replaced in the text of later calls.
func TestFailedCreationsHaveNoID(t *testing.T) {
	r := aSession(t, "agent", `{"memory_limit_in_bytes":"67108864"}`)
	request := r.steps[2].request.(map[string]any)
	got := text(request["config"])
	if want := `{"linux":{"resources":{"memory_limit_in_bytes":"67108864"}},"metadata":{"name":"main"}}`; got != want {
		t.Errorf("the second creation is %s, not %s", got, want)
	}
}

// A pod's replacement, or a pod that comes back, is compared with that of the other driver,
// wherever either continues to count attempts.
func TestNewPodCountsFromZero(t *testing.T) {
	turned := time.Now()
	var calls []call
	run := func(uid, id string, attempt int, at time.Time) {
		calls = append(calls,
			call{Method: "RunPodSandbox", Request: fmt.Appendf(nil, `{"config":{"metadata":{"name":"a","uid":%q,"attempt":%d}}}`, uid, attempt), Response: fmt.Appendf(nil, `{"pod_sandbox_id":"s%s"}`, id), Begin: at},
			call{Method: "CreateContainer", Request: fmt.Appendf(nil, `{"pod_sandbox_id":"s%s","config":{"metadata":{"name":"main","attempt":%d}}}`, id, attempt), Response: fmt.Appendf(nil, `{"container_id":"c%s"}`, id), Begin: at},
			call{Method: "StopContainer", Request: fmt.Appendf(nil, `{"container_id":"c%s"}`, id), Begin: at})
	}
	run("u", "1", 0, turned.Add(-time.Second))
	run("v", "2", 1, turned.Add(time.Second))
	run("v", "3", 2, turned.Add(time.Minute))
	r := recordsOf(t, &session{Calls: calls, Pods: map[string]*v1.Pod{"a": {}}, Turned: map[string]time.Time{"a": turned}})["a"]
	var got []string
	for _, s := range r.steps {
		got = append(got, s.name)
	}
	var want []string
	for _, of := range []string{"%s#0", "new.%s#0", "new.%s#1"} {
		want = append(want, "RunPodSandbox "+fmt.Sprintf(of, "sandbox"), "CreateContainer "+fmt.Sprintf(of, "main"), "StopContainer "+fmt.Sprintf(of, "main"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the calls are of %q, want %q", got, want)
	}
	if got := text(r.steps[3].request); !strings.Contains(got, "NEWUID") {
		t.Errorf("the other pod's sandbox is %s", got)
	}
}

// The orders of starts and of stops are separate differences, so that an explanation of one does
// not match the other.
func TestOrdersAreComparedOneByOne(t *testing.T) {
	of := func(names ...string) *record {
		r := &record{}
		at := time.Now()
		for i, name := range names {
			begin := at.Add(time.Duration(i) * time.Second)
			r.steps = append(r.steps, step{name: name, request: map[string]any{}, begin: begin, end: begin})
		}
		return r
	}
	ordered := of("StartContainer a#0", "StartContainer b#0", "StopContainer a#0", "StopContainer b#0")
	starts := compare("p", ordered, of("StartContainer b#0", "StartContainer a#0", "StopContainer a#0", "StopContainer b#0"))
	if want := []string{"p order of starts: kubelet StartContainer a#0, StartContainer b#0, agent StartContainer b#0, StartContainer a#0"}; !slices.Equal(starts, want) {
		t.Errorf("other starts give %q", starts)
	}
	stops := compare("p", ordered, of("StartContainer a#0", "StartContainer b#0", "StopContainer b#0", "StopContainer a#0"))
	if want := []string{"p order of stops: kubelet StopContainer a#0, StopContainer b#0, agent StopContainer b#0, StopContainer a#0"}; !slices.Equal(stops, want) {
		t.Errorf("other stops give %q", stops)
	}
}
