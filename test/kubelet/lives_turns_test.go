package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A turn is a disturbance of a pod that has reached its state, after which it must reach a state
// again. A turn that kills a program affects all pods with such a turn at once, when all have
// reached their states.
type turn struct {
	name  string
	fits  func(*life) bool // whether a pod may have the turn; nil means every pod
	make  func(*life)      // changes the pod before it starts, unless nil
	edit  func(*life)      // edits the pod for the next manifest, unless nil
	do    func(*node, *manifest) error
	kills string                       // the program that is killed and then restarted: "driver" or "crispd"
	away  func(*node, *manifest) error // called while the program is down, unless nil
	goes  bool                         // the pod's manifest is removed for good
	// came reports whether the pod has reached its state after the turn.
	came func(m *manifest, now *v1.Pod) bool
}

const (
	otherImage = "crisp.test/testbin:other" // another name of testImage
	slowImage  = "crisp.test/slow:latest"   // from a registry that does not answer
)

// ownTurns are turns of a single pod.
var ownTurns = append(edited("edited", "", func(t *turn) { t.do = (*node).putNext }),
	turn{name: "comes-back", fits: (*life).staysAndRestarts, do: (*node).comesBack, came: begunAnew},
	turn{name: "comes-back-edited", edit: func(l *life) { l.pod.Labels = with(l.pod.Labels) }, do: (*node).comesBack, came: replaced},
	turn{name: "killed", fits: (*life).stays, do: (*node).killTarget, came: lost},
	turn{name: "sandbox-stopped", fits: (*life).staysAndRestarts, do: (*node).sandboxesStopped, came: lost},
)

// nodeTurns are turns of all pods for which the same program is killed.
var nodeTurns = slices.Concat(
	[]turn{
		{name: "driver-killed", fits: (*life).remembered, kills: "driver", came: asBefore},
		{name: "driver-killed", fits: (*life).remembered, kills: "driver", came: asBefore},
		{name: "driver-killed", fits: (*life).remembered, kills: "driver", came: asBefore},
		{name: "driver-killed-pulling", fits: (*life).comesToFirst, make: (*life).pulls, do: (*node).inPull, kills: "driver", came: asBefore},
		{name: "driver-killed-ending", fits: (*life).comesToFirst, make: (*life).endsSlowly, do: (*node).inStop, kills: "driver", goes: true},
		{name: "gone-meanwhile", kills: "driver", away: (*node).takeAway, goes: true},
		{name: "killed-meanwhile", fits: (*life).stays, kills: "driver", away: (*node).killTarget, came: lost},
		{name: "sandbox-stopped-meanwhile", fits: (*life).staysAndRestarts, kills: "driver", away: (*node).sandboxesStopped, came: lost},
		// A running driver might or might not see the stopped sandbox before it is removed.
		{name: "sandbox-removed-meanwhile", fits: (*life).staysAndRestarts, kills: "driver", away: (*node).sandboxesRemoved, came: lost},
		{name: "crispd-killed", kills: "crispd", came: asBefore},
		{name: "crispd-killed", kills: "crispd", came: asBefore},
		{name: "crispd-killed", kills: "crispd", came: asBefore},
		{name: "killed-under-crispd", fits: (*life).stays, do: (*node).findTarget, kills: "crispd", away: (*node).killFound, came: lost},
	},
	edited("edited-meanwhile", "driver", func(t *turn) { t.away = (*node).putNext }),
)

// edited returns turns that replace a pod by one with an edited manifest.
func edited(name, kills string, how func(*turn)) []turn {
	edits := map[string]func(*life){
		"image":       func(l *life) { l.pod.Spec.Containers[0].Image = otherImage },
		"env":         func(l *life) { l.edits().Env = append(l.edits().Env, v1.EnvVar{Name: "EDITED", Value: "yes"}) },
		"command":     func(l *life) { l.edits().Args = append([]string{"print", "edited"}, l.edits().Args...) },
		"grace":       func(l *life) { *l.pod.Spec.TerminationGracePeriodSeconds++ },
		"labels":      func(l *life) { l.pod.Labels = with(l.pod.Labels) },
		"annotations": func(l *life) { l.pod.Annotations = with(l.pod.Annotations) },
	}
	var list []turn
	for _, what := range slices.Sorted(maps.Keys(edits)) {
		t := turn{name: name + "-" + what, edit: edits[what], kills: kills, came: replaced}
		t.fits = func(l *life) bool {
			switch {
			case what == "image" && l.kind == "never-begins": // it may be waiting for its image
				return false
			case kills != "" && l.host: // a restarted kubelet briefly runs both pods on the same ports
				return false
			}
			return true
		}
		how(&t)
		list = append(list, t)
	}
	return list
}

func with(m map[string]string) map[string]string {
	m = maps.Clone(m)
	if m == nil {
		m = map[string]string{}
	}
	m["edited"] = "yes"
	return m
}

// turns picks a turn of the pod's own, one of the node's, or none. It does not use the random
// numbers for pods, so that new turns do not change the pods of a seed.
func (l *life) turns() *turn {
	list := [][]turn{nil, ownTurns, nodeTurns}[l.chance.IntN(3)]
	list = slices.DeleteFunc(slices.Clone(list), func(t turn) bool { return t.fits != nil && !t.fits(l) })
	if len(list) == 0 {
		return nil
	}
	return &list[l.chance.IntN(len(list))]
}

// target returns the container that a turn affects, which keeps running.
func (l *life) target() string {
	if l.kind == "stands-still" {
		return "still"
	}
	return "c0"
}

// edits returns the container that an edit changes: the last one, on which the pod's state does not
// depend.
func (l *life) edits() *v1.Container { return &l.pod.Spec.Containers[len(l.pod.Spec.Containers)-1] }

// comesToFirst reports whether the pod gets as far as starting its first container.
func (l *life) comesToFirst() bool {
	return !slices.Contains([]string{"never-begins", "init-fails", "stands-still", "late"}, l.kind)
}

// remembered excludes a pod that ends by its deadline: a standalone kubelet does not remember when
// a pod started, and its deadline starts again.
func (l *life) remembered() bool { return l.kind != "late" }

// stays reports whether the target keeps running.
func (l *life) stays() bool {
	return slices.Contains([]string{"runs", "unready", "stands-still"}, l.kind)
}

// staysAndRestarts excludes the policy Never, with which the kubelet makes no second sandbox, and
// the agent only for containers that may still run (docs/agent.md).
func (l *life) staysAndRestarts() bool {
	return l.stays() && l.pod.Spec.RestartPolicy != v1.RestartPolicyNever
}

// pulls makes the first container wait for an image forever.
func (l *life) pulls() {
	c := &l.pod.Spec.Containers[0]
	only(c, runsOn...)
	c.Image, c.ImagePullPolicy = slowImage, v1.PullIfNotPresent
	l.until = "waiting " + l.first()
}

// endsSlowly makes the first container ignore SIGTERM.
func (l *life) endsSlowly() {
	only(&l.pod.Spec.Containers[0], "ignore-term", "sleep", "for-ever")
	l.pod.Spec.TerminationGracePeriodSeconds = new(int64(8))
	l.until = "running c0"
}

// States of a pod after a turn.

func asBefore(m *manifest, now *v1.Pod) bool { return reached(m.until, &now.Status) }

func replaced(m *manifest, now *v1.Pod) bool {
	return now.UID != m.was.UID && reached(m.until, &now.Status)
}

// lost reports whether the target has ended or was replaced.
func lost(m *manifest, now *v1.Pod) bool {
	before, after := targetOf(m, m.was), targetOf(m, now)
	return before != nil && after != nil && after.ContainerID != "" &&
		(after.ContainerID != before.ContainerID || after.State.Terminated != nil)
}

func begunAnew(m *manifest, now *v1.Pod) bool { return lost(m, now) && reached(m.until, &now.Status) }

func targetOf(m *manifest, pod *v1.Pod) *v1.ContainerStatus {
	all := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	if i := slices.IndexFunc(all, func(c v1.ContainerStatus) bool { return c.Name == m.target }); i >= 0 {
		return &all[i]
	}
	return nil
}

// Actions of turns.

func (n *node) putNext(m *manifest) error { return n.put(m, m.next) }

// comesBack removes the manifest and restores it, or puts the next one, as soon as the pod is
// ending.
func (n *node) comesBack(m *manifest) error {
	if err := n.takeAway(m); err != nil {
		return err
	}
	ends := n.waits(patience, func() bool {
		p, err := n.pod(m.name)
		return err == nil && (p == nil || p.DeletionTimestamp != nil)
	})
	if !ends {
		return errors.New("does not end without its manifest")
	}
	return n.put(m, cmp.Or(m.next, m.text))
}

// killTarget kills the process of the target. findTarget finds the process, for which crispd must
// be running, and killFound kills it.
func (n *node) killTarget(m *manifest) error {
	if err := n.findTarget(m); err != nil {
		return err
	}
	return n.killFound(m)
}

func (n *node) findTarget(m *manifest) (err error) {
	m.pid, err = n.process(func(c *cri.Container) bool { return podOfLabels(c.Labels) == m.name && c.Metadata.Name == m.target })
	if err == nil && m.pid <= 1 {
		err = fmt.Errorf("%s has the process %d", m.target, m.pid)
	}
	return err
}

func (n *node) killFound(m *manifest) error { return syscall.Kill(m.pid, syscall.SIGKILL) }

func (n *node) sandboxesStopped(m *manifest) error {
	return n.eachSandbox(m, func(runtime cri.RuntimeServiceClient, id string) error {
		_, err := runtime.StopPodSandbox(context.Background(), &cri.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
}

func (n *node) sandboxesRemoved(m *manifest) error {
	return n.eachSandbox(m, func(runtime cri.RuntimeServiceClient, id string) error {
		_, err := runtime.RemovePodSandbox(context.Background(), &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}

func (n *node) eachSandbox(m *manifest, do func(cri.RuntimeServiceClient, string) error) error {
	ids, err := n.sandboxes(m.name, true)
	for _, id := range ids {
		err = errors.Join(err, do(cri.NewRuntimeServiceClient(n.conn), id))
	}
	return err
}

// inPull waits until the runtime pulls an image for the pod.
func (n *node) inPull(m *manifest) error {
	if !n.waits(patience, func() bool { return n.proxy.busy("PullImage", m.name) }) {
		return errors.New("pulls nothing")
	}
	return nil
}

// inStop removes the manifest, and waits until a container of the pod is being stopped.
func (n *node) inStop(m *manifest) error {
	list, err := cri.NewRuntimeServiceClient(n.conn).ListContainers(context.Background(), &cri.ListContainersRequest{})
	if err != nil {
		return err
	}
	id := ""
	for _, c := range list.Containers {
		if podOfLabels(c.Labels) == m.name && c.Metadata.Name == m.target {
			id = c.Id
		}
	}
	if err := n.takeAway(m); err != nil {
		return err
	}
	if !n.waits(patience, func() bool { return n.proxy.busy("StopContainer", id) }) {
		return errors.New("is not stopped without its manifest")
	}
	return nil
}

func podOfLabels(labels map[string]string) string {
	return strings.TrimSuffix(labels["io.kubernetes.pod.name"], "-"+nodeName)
}

// silentRegistry writes crispd's registries.conf: the registry of slowImage accepts connections and
// never answers, and that of other images does not exist. Nothing leaves the machine.
func (n *node) silentRegistry() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(n.t, err)
	var conns []net.Conn // keeps them open: an unreferenced one would be closed
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
		}
	}()
	n.t.Cleanup(func() {
		listener.Close()
		<-done
		for _, c := range conns {
			c.Close()
		}
	})
	n.write("registries.conf", fmt.Sprintf(`[[registry]]
prefix = "crisp.test"
location = "127.0.0.1:1/crisp.test"
insecure = true
[[registry]]
prefix = "crisp.test/slow"
location = "%s/slow"
insecure = true
`, listener.Addr()))
}
