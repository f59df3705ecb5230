package podsync_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newWorld makes a random pod, and the programs in it.
func newWorld(seed uint64) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 2)), uses: map[string]*program{}, exits: map[string]exit{},
		came: map[string]int{}, logs: map[string]uint32{}, actual: map[string]v1.ResourceRequirements{}, files: true, resources: true,
		given: map[string]bool{},
	}
	policies := []v1.RestartPolicy{always, onFailure, never}
	w.pod = pod(policies[w.rng.IntN(3)])
	w.pod.Spec.TerminationGracePeriodSeconds = new(int64(30))
	if w.chance(8) {
		w.pod.Spec.ActiveDeadlineSeconds = new(int64(30 + w.rng.IntN(600)))
	}
	w.pod.Spec.Containers = nil
	for i := range w.rng.IntN(4) {
		c := w.container(fmt.Sprintf("i%c", 'a'+i), true)
		if w.chance(2) {
			c.RestartPolicy, c.RestartPolicyRules = new(v1.ContainerRestartPolicyAlways), nil
			w.uses[c.Name].lasts *= time.Duration(w.rng.IntN(2))
		} else {
			c.StartupProbe, c.LivenessProbe, c.ReadinessProbe, c.Lifecycle = nil, nil, nil, nil
		}
		w.pod.Spec.InitContainers = append(w.pod.Spec.InitContainers, c)
	}
	for i := range 1 + w.rng.IntN(3) {
		w.pod.Spec.Containers = append(w.pod.Spec.Containers, w.container(fmt.Sprintf("c%c", 'a'+i), false))
	}
	w.boot()
	return w
}

func (w *world) container(name string, init bool) v1.Container {
	c := v1.Container{Name: name, Image: "one"}
	p := &program{codes: []int32{0}}
	w.uses[name] = p
	if init || w.chance(2) {
		p.lasts = time.Duration(1+w.rng.IntN(20)) * time.Second
	}
	for range w.rng.IntN(3) {
		p.codes = slices.Insert(p.codes, 0, w.code())
	}
	if w.chance(6) {
		p.codes = []int32{w.code()}
	}
	p.missing, p.brokenRun = w.chance(25), w.chance(40)
	if w.chance(4) {
		policies := []v1.ContainerRestartPolicy{v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever}
		c.RestartPolicy = new(policies[w.rng.IntN(3)])
		if init && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			c.RestartPolicy = nil // it would make it a sidecar
		}
		if c.RestartPolicy != nil && w.chance(2) {
			c.RestartPolicyRules = []v1.ContainerRestartRule{w.rule()}
		}
	}
	if w.chance(3) {
		c.StartupProbe = &v1.Probe{}
		if p.startup = time.Duration(w.rng.IntN(7)) * time.Second; w.chance(8) {
			p.startup = -1
		}
	}
	if w.chance(4) {
		c.LivenessProbe = &v1.Probe{}
		p.unhealthy = w.chance(8)
	}
	if w.chance(3) {
		c.ReadinessProbe = &v1.Probe{}
	}
	if w.chance(5) {
		c.Lifecycle = &v1.Lifecycle{}
	}
	return c
}

func (w *world) rule() v1.ContainerRestartRule {
	r := v1.ContainerRestartRule{Action: v1.ContainerRestartRuleActionRestart,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42, 137}}}
	if w.chance(3) {
		r.ExitCodes.Operator = v1.ContainerRestartRuleOnExitCodesOpNotIn
	}
	if w.chance(3) {
		r.Action = v1.ContainerRestartRuleActionRestartAllContainers
	}
	return r
}

func (w *world) code() int32 { return [...]int32{0, 1, 2, 42, 137, 143, 255}[w.rng.IntN(7)] }

// event makes a random change to the pod, its runtime or its agent.
func (w *world) event() {
	switch n := w.rng.IntN(24); {
	case n < 6:
		w.exitEvent()
	case n < 8:
		w.sandboxEvent()
	case n < 10:
		w.note("agent killed")
		w.boot()
		w.sleep(time.Duration(w.rng.IntN(15)) * time.Second)
	case n == 10:
		w.jump(time.Duration(w.rng.IntN(7200)-3600) * time.Second)
	case n == 11 && w.chance(2):
		w.request()
	case n == 12 && w.chance(3):
		c := &w.pod.Spec.Containers[w.rng.IntN(len(w.pod.Spec.Containers))]
		c.Image += "'"
		w.note("%s has another image", c.Name)
	case n == 13 && w.chance(3):
		c := &w.pod.Spec.Containers[0]
		c.Resources.Limits = v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(100+100*int64(w.rng.IntN(9)), resource.DecimalSI)}
		w.note("%s has another limit", c.Name)
	case n == 14 && w.chance(3) && len(w.pod.Spec.EphemeralContainers) < 2:
		e := v1.EphemeralContainer{TargetContainerName: "ca"}
		e.Name, e.Image = fmt.Sprintf("e%d", len(w.pod.Spec.EphemeralContainers)), "debug"
		w.uses[e.Name] = &program{codes: []int32{1}, lasts: 5 * time.Second}
		w.pod.Spec.EphemeralContainers = append(w.pod.Spec.EphemeralContainers, e)
		w.note("ephemeral %s", e.Name)
	}
}

// request makes a random request of a user or the node.
func (w *world) request() {
	switch n := w.rng.IntN(8); {
	case n < 3 && w.stop == nil:
		w.stop = &podsync.Stop{Since: w.now()}
		w.note("stop")
	case n < 5 && w.stop.On():
		w.stop = &podsync.Stop{Since: w.stop.Since, Started: w.now()}
		w.note("start")
	case n == 5:
		for _, c := range w.containers {
			if c.State == podsync.Running && !isInit(w.pod, c.Name) {
				w.restart[c.ID] = new(2 * time.Second)
				w.note("restart %s", c.ID)
			}
		}
	case n == 6 && w.chance(2):
		w.verdict = &podsync.Verdict{Reason: "Evicted", Message: "no memory"}
		w.note("evicted")
	case n == 7 && w.chance(2):
		w.pod.DeletionTimestamp = &metav1.Time{Time: w.now()}
		w.note("deleted")
	}
}

func (w *world) exitEvent() {
	if len(w.containers) == 0 {
		return
	}
	c := &w.containers[w.rng.IntN(len(w.containers))]
	if c.State != podsync.Running {
		return
	}
	switch w.rng.IntN(8) {
	case 0, 1:
		w.ends(c, [...]int32{137, 0, 1}[w.rng.IntN(3)], "OOMKilled")
	case 2:
		c.State = podsync.Unknown
		w.note("%s is in an unknown state", c.ID)
	default:
		w.ends(c, w.code(), "")
	}
}

func (w *world) sandboxEvent() {
	if len(w.sandboxes) == 0 {
		return
	}
	id := w.sandboxes[0].ID
	w.note("sandbox %s is lost", id)
	w.loseSandbox(id)
	if w.chance(4) {
		w.note("… with all others and all containers")
		w.sandboxes, w.containers = nil, nil
	}
}

// describe formats the relevant parts of a pod.
func describe(p *v1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "restartPolicy %s", p.Spec.RestartPolicy)
	for c := range podsync.Containers(&p.Spec) {
		fmt.Fprintf(&b, "; %s", c.Name)
		if c.RestartPolicy != nil {
			fmt.Fprintf(&b, " %s", *c.RestartPolicy)
		}
		for _, r := range c.RestartPolicyRules {
			fmt.Fprintf(&b, " %s on %s %v", r.Action, r.ExitCodes.Operator, r.ExitCodes.Values)
		}
		for name, set := range map[string]bool{"startup": c.StartupProbe != nil, "liveness": c.LivenessProbe != nil, "readiness": c.ReadinessProbe != nil} {
			if set {
				fmt.Fprintf(&b, " %s", name)
			}
		}
	}
	return b.String()
}
