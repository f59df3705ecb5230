package criruntime

import (
	"context"
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

// Containers have shrunk only once their sandbox has: until then the resize is shown as in
// progress, and tried again.
func TestShrinkWaitsForTheSandbox(t *testing.T) {
	d, r, pod := record(t, "  containers: [{name: a, image: i, resources: {limits: {memory: 20Mi, cpu: 200m}}}]\n")
	begin(t, d, pod)
	d.runtime = &narrow{recorder: r, failures: 1}
	pod = pod.DeepCopy()
	pod.Spec.Containers[0].Resources.Limits[v1.ResourceMemory] = resource.MustParse("10Mi")
	try := func() error {
		have, err := d.Observe(t.Context(), podsync.KeyOf(pod), pod)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range podsync.Compute(pod, have, time.Now()).Actions {
			if a.Verb == podsync.Resize {
				return d.resize(t.Context(), pod, a)
			}
		}
		t.Fatal("no resize is planned")
		return nil
	}
	if err := try(); err == nil {
		t.Fatal("the resize succeeded without the sandbox")
	}
	if err := try(); err != nil {
		t.Fatal(err)
	}
	if got := d.files.Actual(string(pod.UID))["a"].Limits[v1.ResourceMemory]; got.Value() != 10<<20 {
		t.Errorf("the container has %s", got.String())
	}
}
