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

// atOnce is the number of pods that a driver runs concurrently. Calls are sorted by pod, so pods do
// not interfere.
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

// A manifest is a file of testdata. Its first line has the state that the pod must reach before it
// is deleted:
//
//	# until: ready | phase PHASE | waiting REASON | restarts N | running CONTAINER |
//	  ended CONTAINER | loops | refused
//
// A refused pod is not listed, or the agent lists it as Failed from the start. A pod that does not
// reach its state, with either driver, fails the test.
//
// The line may also have a time for which the pod continues, for events after the state:
//
//	# until: ready, then 3s
type manifest struct {
	name    string // of the file and of the pod
	text    string
	until   string
	then    time.Duration
	settles bool // wait until the status stops changing

	turn   *turn  // the disturbance that follows; nil means none
	target string // the container that the turn affects
	next   string // the edited manifest

	// The results:
	was, later *v1.Pod   // in its state, and after its turn
	pid        int       // of the target container
	turned     time.Time // when the manifest was replaced or restored
	missed     []string  // a line for each state that was not reached
	failed     bool
}

// For each pod of testdata the kubelet and the agent make the same calls, except for explained
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
		// Subtests, so that one node has ended before the other starts: they use the same host
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
	if os.Getenv("ONLY") == "" { // a selection of pods does not have all differences
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

// tooSlow has the pods that do not work on an emulated machine, with the reason.
var tooSlow = map[string]string{"tiny-cpu": "in half a percent of an emulated CPU a container does not start within the two minutes that a call may take"}

// drive takes the pods of all manifests through their lives.
func drive(t *testing.T, n *node, list []manifest) *session {
	begin := time.Now()
	list = slices.Clone(list) // a copy, since it receives the results of this driver
	for _, kills := range []string{"", "driver", "crispd"} {
		var round []*manifest
		for i := range list {
			if m := &list[i]; m.kills() == kills {
				round = append(round, m)
			}
		}
		n.round(kills, round)
	}
	if t.Failed() {
		t.Fatal(n.tails())
	}
	t.Logf("%d pods have lived and ended by the %s in %v", len(list), n.driver, time.Since(begin).Round(time.Second))
	// The kubelet collects garbage once a minute.
	n.until("all sandboxes are removed", 4*time.Minute, func() bool {
		left, err := n.sandboxes("", false)
		return err == nil && len(left) == 0
	})
	s := &session{Driver: n.driver, Dir: n.dir, Calls: n.proxy.all(), Pods: map[string]*v1.Pod{}, Later: map[string]*v1.Pod{}, Turned: map[string]time.Time{}}
	for _, m := range list {
		s.Pods[m.name], s.Turned[m.name] = m.was, m.turned
		if m.later != nil {
			s.Later[m.name] = m.later
		}
		s.Missed = append(s.Missed, m.missed...)
	}
	slices.Sort(s.Missed)
	return s
}

// kills returns the program that the pod's turn kills, "" if it kills none.
func (m *manifest) kills() string {
	if m.turn == nil {
		return ""
	}
	return m.turn.kills
}

// round takes pods through their lives, atOnce at a time. If the round kills a program, all pods
// must reach their states before that.
func (n *node) round(kills string, list []*manifest) {
	n.t.Helper()
	if kills == "" {
		n.each(list, atOnce, n.begins, n.turns, n.becomes, n.ends)
		return
	}
	if len(list) == 0 {
		return
	}
	n.each(list, atOnce, n.begins)
	n.each(list, len(list), n.turns)
	if kills == "driver" {
		n.kill(n.driver)
	} else {
		n.kill(kills)
	}
	n.each(list, len(list), func(m *manifest) error {
		if m.turn.away == nil {
			return nil
		}
		return m.turn.away(n, m)
	})
	if kills == "driver" {
		n.runDriver()
	} else {
		n.runCrispd()
		n.answers()
	}
	n.each(list, len(list), n.becomes, n.ends)
}

// each runs the steps for each manifest, until one fails.
func (n *node) each(list []*manifest, atOnce int, steps ...func(*manifest) error) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, m := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			for _, step := range steps {
				if m.failed {
					return
				}
				if err := step(m); err != nil {
					n.t.Errorf("%s: %s: %v", n.driver, m.name, err)
					m.failed = true
				}
			}
		})
	}
	wg.Wait()
}

// put writes text as the pod's manifest.
func (n *node) put(m *manifest, text string) error {
	path := filepath.Join(n.dir, "manifests", m.name+".yaml")
	content := strings.NewReplacer("OWN-IMAGE", ownImage(m.name), "IMAGE", testImage, "HOSTDIR", filepath.Join(n.dir, "host")).Replace(text)
	hidden := filepath.Join(n.dir, m.name+".yaml")
	if err := os.WriteFile(hidden, []byte(content), 0o644); err != nil {
		return err
	}
	m.turned = time.Now()
	return os.Rename(hidden, path) // neither driver may read a partial file
}

func (n *node) takeAway(m *manifest) error {
	return os.Remove(filepath.Join(n.dir, "manifests", m.name+".yaml"))
}

// begins adds the manifest, and waits for the pod's state.
func (n *node) begins(m *manifest) error {
	if err := n.put(m, m.text); err != nil {
		return err
	}
	m.turned = time.Time{}
	pod := &v1.Pod{Status: v1.PodStatus{Message: refused}}
	limit := patience
	if m.until == "refused" {
		limit = 5 * time.Second // long enough to see that it does not appear
	}
	came := n.waits(limit, func() bool {
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
	m.was = pod
	if !came {
		m.missed = append(m.missed, fmt.Sprintf("%s did not reach the state %q: %s", m.name, m.until, text(comparedStatus(pod.Status))))
	}
	return nil
}

// turns applies the pod's turn.
func (n *node) turns(m *manifest) error {
	if m.turn == nil || m.turn.do == nil {
		return nil
	}
	return m.turn.do(n, m)
}

// becomes waits for the pod's state after its turn.
func (n *node) becomes(m *manifest) error {
	if m.turn == nil || m.turn.goes {
		return nil
	}
	var pod *v1.Pod
	came := n.waits(patience, func() bool {
		p, err := n.pod(m.name)
		if p != nil {
			pod = p
		}
		return err == nil && p != nil && m.turn.came(m, p)
	})
	if pod == nil {
		return fmt.Errorf("is not listed after its turn")
	}
	if came {
		pod = n.settles(m.name, pod)
	} else {
		m.missed = append(m.missed, fmt.Sprintf("%s did not reach a state after the turn %s: %s", m.name, m.turn.name, text(comparedStatus(pod.Status))))
	}
	m.later = pod
	return nil
}

// ends removes the manifest, and waits until the pod has ended.
func (n *node) ends(m *manifest) error {
	if m.turn == nil || !m.turn.goes {
		if err := n.takeAway(m); err != nil {
			return err
		}
	}
	gone := n.waits(2*time.Minute, func() bool {
		ready, err := n.sandboxes(m.name, true)
		p, perr := n.pod(m.name)
		return err == nil && perr == nil && len(ready) == 0 && p == nil
	})
	if !gone {
		return fmt.Errorf("still exists two minutes after its manifest was removed")
	}
	return nil
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
	case "loops": // the kubelet shows the back-off only briefly
		return slices.ContainsFunc(all, func(c v1.ContainerStatus) bool {
			return c.RestartCount > 1 || c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
		})
	case "refused":
		return false
	}
	panic("unknown state " + until)
}
