package criruntime

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A missing runtime lists a container, but does not find it to update it.
type missing struct{ *recorder }

func (missing) UpdateContainerResources(context.Context, string, *cri.ContainerResources) error {
	return status.Error(codes.NotFound, "no such container")
}

// A resize whose container is not found has failed, so that the worker waits before the next try:
// a success would be planned again at once.
func TestResizeOfMissingContainer(t *testing.T) {
	d, r, pod := record(t, "  containers: [{name: a, image: i, resources: {limits: {memory: 10Mi}}}]\n")
	begin(t, d, pod)
	d.runtime = missing{r}
	pod = pod.DeepCopy()
	pod.Spec.Containers[0].Resources.Limits[v1.ResourceMemory] = resource.MustParse("20Mi")
	have, err := d.Observe(t.Context(), podsync.KeyOf(pod), pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.resize(t.Context(), pod, podsync.Action{Verb: podsync.Resize, SandboxID: have.Sandboxes[0].ID}); reasonOf(err) != "ResizeError" {
		t.Errorf("got %v, want a ResizeError", err)
	}
}

// narrow fails to resize the sandbox a number of times.
type narrow struct {
	*recorder
	failures int
}

func (r *narrow) UpdatePodSandboxResources(ctx context.Context, req *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	if r.failures > 0 {
		r.failures--
		return nil, status.Error(codes.Internal, "device or resource busy")
	}
	return r.recorder.UpdatePodSandboxResources(ctx, req)
}

// limit sets the memory limit of the pod's first container.
func limit(pod *v1.Pod, memory string) *v1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.Containers[0].Resources.Limits[v1.ResourceMemory] = resource.MustParse(memory)
	return pod
}

// turn executes what is planned for the pod. It returns the first error and the calls that resized.
func turn(t *testing.T, d *Driver, r *recorder, pod *v1.Pod) (resizes []string, err error) {
	t.Helper()
	have, err := d.Observe(t.Context(), podsync.KeyOf(pod), pod)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	r.calls = nil
	r.mu.Unlock()
	for _, a := range podsync.Compute(pod, have, time.Now()).Actions {
		if a.Verb == podsync.StopContainer {
			now := make(chan struct{})
			close(now)
			err = d.Stop(t.Context(), now, pod, a)
		} else {
			err = d.Act(t.Context(), t.Context(), pod, a)
		}
		if err != nil {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, call := range r.calls {
		_, call, _ = strings.Cut(call, " ") // the time
		if strings.HasPrefix(call, "update ") || strings.HasPrefix(call, "create ") {
			resizes = append(resizes, call)
		}
	}
	return resizes, err
}

// A shrink has ended only once the sandbox has shrunk, too: until then the rest is tried again, and
// a spec that is changed back meanwhile is applied to the container that has shrunk already.
func TestShrinkWaitsForTheSandbox(t *testing.T) {
	for name, then := range map[string]struct {
		memory string
		want   []string
	}{
		"tried again": {"10Mi", []string{"update sandbox cpu 20000 memory 10485760"}},
		"taken back":  {"20Mi", []string{"update sandbox cpu 20000 memory 20971520", "update cpu 20000 memory 20971520", "update sandbox cpu 20000 memory 20971520"}},
	} {
		t.Run(name, func(t *testing.T) {
			d, r, pod := record(t, "  containers: [{name: a, image: i, resources: {limits: {memory: 20Mi, cpu: 200m}}}]\n")
			begin(t, d, pod)
			d.runtime = &narrow{recorder: r, failures: 1}
			if calls, err := turn(t, d, r, limit(pod, "10Mi")); err == nil || !slices.Equal(calls, []string{"update cpu 20000 memory 10485760"}) {
				t.Fatalf("at first: %q, %v", calls, err)
			}
			if have, err := d.Observe(t.Context(), podsync.KeyOf(pod), pod); err != nil || !have.Resizing {
				t.Errorf("after the failure: resizing %v, %v", have.Resizing, err)
			}
			if calls, err := turn(t, d, r, limit(pod, then.memory)); err != nil || !slices.Equal(calls, then.want) {
				t.Errorf("then: %q, %v; want %q", calls, err, then.want)
			}
			if calls, err := turn(t, d, r, limit(pod, then.memory)); err != nil || len(calls) > 0 {
				t.Errorf("at last: %q, %v", calls, err)
			}
		})
	}
}

// A container that is restarted in order to resize it gets room in its sandbox before it starts.
func TestResizeByRestart(t *testing.T) {
	d, r, pod := record(t, "  containers: [{name: a, image: i, resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}], resources: {limits: {memory: 20Mi, cpu: 200m}}}]\n")
	begin(t, d, pod)
	pod = limit(pod, "40Mi")
	var all []string
	for range 3 {
		calls, err := turn(t, d, r, pod)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, calls...)
	}
	if len(all) < 2 || all[0] != "update sandbox cpu 20000 memory 41943040" || !strings.HasPrefix(all[1], "create ") {
		t.Errorf("the calls are %q", all)
	}
}
