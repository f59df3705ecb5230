package agent

import (
	"context"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/worker"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// stopPatience is how long stopPods waits for a runtime that does not answer. Then the pods run
// on.
const stopPatience = time.Minute

// shutsDown reports whether systemd is shutting the machine down: "stopping" is the state of its
// manager then, systemctl(1). Without an answer it is not.
func shutsDown() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	state, _ := exec.CommandContext(ctx, "systemctl", "is-system-running").Output() // it fails in every state but "running"
	return strings.TrimSpace(string(state)) == "stopping"
}

// stopPods stops all wanted pods, those of the lowest priority first, and returns when none
// runs, or when the runtime has not answered for stopPatience. It does not delete them: the next
// agent starts them again if their restart policies say so.
func (a *Agent) stopPods(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A container may take long to end, but the runtime must answer.
	giveUp := time.AfterFunc(stopPatience, cancel)
	defer giveUp.Stop()
	go periodic.Run(ctx, stopPatience/6, func(ctx context.Context) {
		limited, cancel := context.WithTimeout(ctx, stopPatience/6)
		defer cancel()
		if _, err := a.Runtime.Runtime().Version(limited, ""); err == nil {
			giveUp.Reset(stopPatience)
		}
	})
	by := map[int32][]*v1.Pod{}
	for _, pod := range a.Wanted.Pods() {
		priority := podsync.Priority(pod)
		by[priority] = append(by[priority], pod)
	}
	for _, priority := range slices.Sorted(maps.Keys(by)) {
		a.o.Log.InfoContext(ctx, "pods are being stopped", "priority", priority, "pods", len(by[priority]))
		pool := worker.NewPool(ctx, stopper{backend{a.driver, a}}, a.o.Log)
		for _, pod := range by[priority] {
			stopped := pod.DeepCopy()
			stopped.DeletionTimestamp = &metav1.Time{}
			pool.Set(podsync.KeyOf(pod), stopped)
		}
		pool.Wait()
		if ctx.Err() != nil {
			a.o.Log.Error("pods run on: the runtime does not answer", "priority", priority)
			return
		}
	}
}

// A stopper shows workers only what runs, so that they consider a stopped pod gone.
type stopper struct{ backend }

func (s stopper) Observe(ctx context.Context, key podsync.Key, pod *v1.Pod) (podsync.Have, error) {
	have, err := s.backend.Observe(ctx, key, pod)
	have.Containers = slices.DeleteFunc(have.Containers, func(c podsync.Container) bool {
		return c.State != podsync.Running && c.State != podsync.Unknown
	})
	have.Sandboxes = slices.DeleteFunc(have.Sandboxes, func(sb podsync.Sandbox) bool { return !sb.Ready })
	have.Files = nil
	return have, err
}

// Report reports no status: the end of the agent changes none.
func (s stopper) Report(*v1.Pod, podsync.Have) *v1.PodStatus { return nil }

// Ended does nothing: the pod is still wanted.
func (s stopper) Ended(podsync.Key, types.UID) {}
