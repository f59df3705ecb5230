package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// atOnce is the number of pods that are driven at a time. Calls are sorted by pod, so pods do not
// interfere.
var atOnce = 8

// patience bounds the wait for a pod's state.
const patience = 2 * time.Minute

// slowness multiplies all timeouts on an emulated machine, which has CRISP_VM set.
var slowness time.Duration = 1

func init() {
	if os.Getenv("CRISP_VM") != "" {
		atOnce, slowness = 2, 8
	}
}

// refused is the message of a pod that a driver does not list.
const refused = "not listed"

// A manifest is a file of testdata. Its first line has the state that the pod must reach
// before it is deleted:
//
//	# until: ready | phase PHASE | waiting REASON | restarts N | running CONTAINER |
//	  ended CONTAINER | loops | refused
//
// A refused pod is not listed, or is listed by the agent as Failed from the beginning. A pod
// that does not reach its state fails the test, with either driver.
//
// The line may also have a time for which the pod lives on, for events that come after the
// state:
//
//	# until: ready, then 3s
type manifest struct {
	name    string // of the file and of the pod
	text    string
	until   string
	then    time.Duration
	settles bool // it lives on until its status changes no more
}

// For each pod of testdata, the kubelet and the agent make the same calls, except for explained
// differences.
func TestSamePods(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it runs containers")
	}
	if _, err := os.Stat(kubeletProgram()); err != nil {
		t.Skipf("the kubelet is not built (%v): make test-kubelet", err)
	}
	list := manifests(t)
	records := map[string]map[string]*record{}
	for _, driver := range []string{"kubelet", "agent"} {
		// A subtest for each, so that one node has ended before the other starts: they share host
		// ports.
		t.Run(driver, func(t *testing.T) {
			s := sessionOf(t, driver, "", list)
			for _, line := range s.Missed {
				t.Errorf("%s: %s", driver, line)
			}
			records[driver] = recordsOf(t, s)
		})
	}
	if len(records) < 2 {
		return
	}
	known := newReasons(explanationsOfAll, explanations)
	differences, unexplained, calls := 0, 0, 0
	for _, m := range list {
		k, a := records["kubelet"][m.name], records["agent"][m.name]
		if k == nil || a == nil {
			t.Fatalf("%s is not in the records", m.name)
		}
		calls += len(byName(k.steps))
		lines := compare(m.name, k, a)
		differences += len(lines)
		for _, line := range known.without(lines) {
			t.Errorf("unexplained: %s", line)
			unexplained++
		}
	}
	t.Logf("%d pods, %d distinct calls of the kubelet, %d differences, %d unexplained", len(list), calls, differences, unexplained)
	known.log(t)
	if os.Getenv("ONLY") == "" { // a part of the pods does not show all differences
		known.unused(t)
	}
}

func manifests(t *testing.T) (list []manifest) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	check(t, err)
	for _, path := range files {
		data, err := os.ReadFile(path)
		check(t, err)
		until := regexp.MustCompile(`^# until: (.+)\n`).FindSubmatch(data)
		if until == nil {
			t.Fatalf("%s does not begin with # until:", path)
		}
		state, rest, _ := strings.Cut(string(until[1]), ", then ")
		m := manifest{name: strings.TrimSuffix(filepath.Base(path), ".yaml"), text: string(data), until: state}
		if rest != "" {
			m.then, err = time.ParseDuration(rest)
			check(t, err)
		}
		if why := tooSlow[m.name]; why != "" && slowness > 1 {
			t.Logf("%s is left out: %s", m.name, why)
			continue
		}
		if only := os.Getenv("ONLY"); only == "" || regexp.MustCompile(only).MatchString(m.name) {
			list = append(list, m)
		}
	}
	return list
}

// tooSlow are the pods that do not work on an emulated machine, with the reason.
var tooSlow = map[string]string{"tiny-cpu": "in half a percent of an emulated CPU a container does not start within the two minutes that a call may take"}

// drive takes the pod of each manifest through its life.
func drive(t *testing.T, n *node, list []manifest) *session {
	begin := time.Now()
	var mu sync.Mutex
	pods := map[string]*v1.Pod{}
	var missed []string
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, m := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			pod, came, err := n.live(m)
			if err != nil {
				t.Errorf("%s: %s: %v", n.driver, m.name, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			pods[m.name] = pod
			if !came {
				missed = append(missed, fmt.Sprintf("%s never came to %q: %s", m.name, m.until, text(told(pod.Status))))
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.Fatal(n.tails())
	}
	t.Logf("%d pods have lived and ended by the %s in %v", len(list), n.driver, time.Since(begin).Round(time.Second))
	// The kubelet collects garbage once a minute.
	n.until("all sandboxes are removed", 4*time.Minute, func() bool {
		left, err := n.sandboxes("", false)
		return err == nil && len(left) == 0
	})
	slices.Sort(missed)
	return &session{n.driver, n.dir, n.proxy.all(), pods, missed}
}

// live adds the manifest, waits for the pod's state, and removes it. It returns the pod at that
// time, and whether it had reached the state.
func (n *node) live(m manifest) (pod *v1.Pod, came bool, err error) {
	path := filepath.Join(n.dir, "manifests", m.name+".yaml")
	content := strings.NewReplacer("OWN-IMAGE", ownImage(m.name), "IMAGE", testImage, "HOSTDIR", filepath.Join(n.dir, "host")).Replace(m.text)
	hidden := filepath.Join(n.dir, m.name+".yaml")
	if err := os.WriteFile(hidden, []byte(content), 0o644); err != nil {
		return nil, false, err
	}
	if err := os.Rename(hidden, path); err != nil { // neither driver may read half a file
		return nil, false, err
	}
	pod = &v1.Pod{Status: v1.PodStatus{Message: refused}}
	limit := patience
	if m.until == "refused" {
		limit = 5 * time.Second // it must not appear at all
	}
	came = n.waits(limit, func() bool {
		p, err := n.pod(m.name)
		if p != nil {
			pod = p
		}
		return err == nil && p != nil && reached(m.until, &p.Status)
	})
	if m.until == "refused" {
		came = pod.Status.Message == refused || n.driver == "agent" && pod.Status.Phase == v1.PodFailed
	}
	if m.then > 0 {
		time.Sleep(m.then)
		if p, err := n.pod(m.name); err == nil && p != nil {
			pod = p
		}
	}
	if came && m.settles {
		pod = n.settles(m.name, pod)
	}
	if n.look != nil {
		n.look(pod)
	}
	if err := os.Remove(path); err != nil {
		return nil, false, err
	}
	gone := n.waits(2*time.Minute, func() bool {
		ready, err := n.sandboxes(m.name, true)
		p, perr := n.pod(m.name)
		return err == nil && perr == nil && len(ready) == 0 && p == nil
	})
	if !gone {
		return nil, false, fmt.Errorf("is still there two minutes after its manifest went")
	}
	return pod, came, nil
}

func reached(until string, s *v1.PodStatus) bool {
	verb, arg, _ := strings.Cut(until, " ")
	all := slices.Concat(s.InitContainerStatuses, s.ContainerStatuses)
	switch verb {
	case "ready":
		return slices.ContainsFunc(s.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
	case "phase":
		return string(s.Phase) == arg
	case "waiting":
		return slices.ContainsFunc(all, func(c v1.ContainerStatus) bool { return c.State.Waiting != nil && c.State.Waiting.Reason == arg })
	case "restarts":
		return slices.ContainsFunc(all, func(c v1.ContainerStatus) bool { return fmt.Sprint(c.RestartCount) == arg && c.State.Running != nil })
	case "running":
		return slices.ContainsFunc(all, func(c v1.ContainerStatus) bool { return c.Name == arg && c.State.Running != nil })
	case "ended":
		return slices.ContainsFunc(all, func(c v1.ContainerStatus) bool { return c.Name == arg && c.State.Terminated != nil })
	case "loops": // the kubelet says so for moments only
		return slices.ContainsFunc(all, func(c v1.ContainerStatus) bool {
			return c.RestartCount > 1 || c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
		})
	case "refused":
		return false
	}
	panic("unknown state " + until)
}
