package server

import (
	"reflect"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
)

// The author of a checkpoint image can make it name any image. An image that another user has
// pulled to the node must not become readable that way, unless a registry permits it.
func TestCheckpointImageGivesNoRightToAnother(t *testing.T) {
	n := newNode(t)
	sb, err := n.server.runtime.Sandbox(n.run(t, pod("web")))
	if err != nil {
		t.Fatal(err)
	}
	base := func(from *origin) error {
		r := &restoration{from: from, was: checkpoint.Container{RootfsImageRef: testID, RootfsImageName: testImage}}
		err := n.server.baseImage(t.Context(), sb, &cri.ContainerConfig{Image: &cri.ImageSpec{Image: testImage}}, r)
		if err == nil && r.base.ID != testID {
			t.Errorf("image is %s, want %s", r.base.ID, testID)
		}
		return err
	}
	asked := func() int {
		n.store.mu.Lock()
		defer n.store.mu.Unlock()
		return len(n.store.pulled)
	}
	evil := &origin{image: "sha256:evil"}
	n.store.failing("Pull", fault.Unavailable.Errorf("unauthorized"))
	if err := base(evil); err == nil {
		t.Error("the image was given to one whom its registry refuses it")
	}
	// A caller that gives a path has access to crispd's socket.
	if err := base(&origin{archive: "/c.tar"}); err != nil {
		t.Errorf("from an archive: %v", err)
	}
	n.store.failing("Pull", nil)
	if err := base(evil); err != nil {
		t.Errorf("where the registry allows it: %v", err)
	}
	n.store.mu.Lock()
	want := registry.Caller{Namespace: n.server.index.sandbox(sb).config.Metadata.Namespace}
	if len(n.store.pulled) != 1 || n.store.pulled[0].Namespace != want.Namespace {
		t.Errorf("asked for %v, want once for %v", n.store.pulled, want)
	}
	for i := range n.store.list {
		n.store.list[i].Digests = nil
	}
	n.store.mu.Unlock()
	if err := base(evil); err != nil || asked() != 1 {
		t.Errorf("an image that was loaded: %v, and registries were asked %d times", err, asked())
	}
}

// A container from a checkpoint takes the same steps as any other, in the same order, except for
// the lookup of its image, which is the original's.
func TestRestoreLeavesNoStepOut(t *testing.T) {
	same := func(a, b createStep) bool {
		return a.stage == b.stage && reflect.ValueOf(a.do).Pointer() == reflect.ValueOf(b.do).Pointer()
	}
	own := createStep{"", (*containerDraft).findImage}
	rest := restoreSteps
	for i, step := range createSteps {
		if same(step, own) {
			continue
		}
		for len(rest) > 0 && !same(rest[0], step) {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			t.Fatalf("step %d, stage %q, is not among those of a restoration", i, step.stage)
		}
	}
}
