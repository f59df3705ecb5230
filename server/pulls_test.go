package server

import (
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/pullapi"
	"github.com/crisp-cri/crisp/internal/pullapi/pullclient"
	"github.com/crisp-cri/crisp/internal/pulls"
)

// The progress of a pull is in the verbose statuses and in the stream beside CRI. An image that is
// being pulled does not count as present.
func TestPullProgress(t *testing.T) {
	n := newNode(t)
	n.store.coming = []pulls.Pull{{Image: "docker.io/library/new:latest", Bytes: 43, Total: 100, AllKnown: true, For: []string{"default/web"}}, {Image: testImage}}
	status := func(name string, verbose bool) *cri.ImageStatusResponse {
		resp, err := n.images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}, Verbose: verbose})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	if resp := status("new", true); resp.Image != nil || !strings.Contains(resp.Info["info"], `"bytes":43,"total":100`) {
		t.Errorf("image that is coming: %v", resp)
	}
	if resp := status("new", false); resp.Image != nil || resp.Info != nil {
		t.Errorf("image that is coming, to a client that wants little: %v", resp)
	}
	if resp := status("other", true); resp.Image != nil || resp.Info != nil {
		t.Errorf("image that is not coming: %v", resp)
	}
	if resp := status(testID, true); resp.Image == nil || !strings.Contains(resp.Info["info"], `"pulls":[{"image":"`+testImage) {
		t.Errorf("image that is pulled again: %v", resp)
	}
	resp, err := n.Status(t.Context(), &cri.StatusRequest{Verbose: true})
	if err != nil || !strings.Contains(resp.Info["activity"], `"for":["default/web"]`) {
		t.Errorf("info of the runtime: %v, %v", resp.GetInfo(), err)
	}
	err = pullclient.Watch(t.Context(), n.conn, pullapi.Request{Pod: "default/web", Once: true}, func(list []pulls.Pull) error {
		if len(list) != 1 || list[0].String() != "43 %, 0 B/s" {
			t.Errorf("the stream tells %v", list)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The store is told for which pod an image is pulled.
func TestPullIsForPod(t *testing.T) {
	n := newNode(t)
	for _, m := range []*cri.PodSandboxMetadata{nil, {Namespace: "default", Name: "web"}} {
		if _, err := n.images.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: testImage}, SandboxConfig: &cri.PodSandboxConfig{Metadata: m}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.store.pulled; got[0].Pod != "" || got[1].Pod != "default/web" {
		t.Errorf("pulled for %q and %q", got[0].Pod, got[1].Pod)
	}
}
