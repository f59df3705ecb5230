package main

import (
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/pullwatch"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/pulls"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// pulling returns the pull progress of pods that wait for an image, by namespace/name. It asks the
// runtime only if a pod waits, and returns none if the runtime does not report progress.
func (c *cli) pulling(list []*v1.Pod) map[string]string {
	if !slices.ContainsFunc(list, waits) {
		return nil
	}
	under := c.pulls()
	texts := map[string]string{}
	for _, pod := range list {
		key := podsync.KeyOf(pod).String()
		if p, ok := pulls.Of(under, key); ok && waits(pod) {
			texts[key] = "Pulling " + p.String()
		}
	}
	return texts
}

// waits reports whether a pod waits for something, possibly an image.
func waits(pod *v1.Pod) bool {
	ready, all := status.Count(pod)
	return ready < all && !podsync.Terminal(&pod.Status) && pod.DeletionTimestamp == nil
}

// pullOf returns the progress of the pull that a pod waits for; "" if there is none.
func (c *cli) pullOf(pod *v1.Pod) string {
	if pod.Status.Phase == v1.PodRunning {
		return ""
	}
	name := podsync.KeyOf(pod).String()
	p, ok := c.pullFor(name)
	if !ok {
		return ""
	}
	return strings.TrimSpace(p.Image + ": " + p.String() + " " + p.Source())
}

// pullFor returns the pull that a pod waits for, by namespace/name.
func (c *cli) pullFor(pod string) (pulls.Pull, bool) {
	return pulls.Of(c.pulls(), pod)
}

// pulls returns the running pulls; none if the runtime does not report them.
func (c *cli) pulls() []pulls.Pull {
	watcher := pullwatch.New(c.endpoint)
	defer watcher.Close()
	return watcher.List(c.ctx)
}

// dialRuntime connects to the runtime's socket, for services other than CRI.
func (c *cli) dialRuntime() (*grpc.ClientConn, error) {
	return grpc.NewClient(c.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
}

// podsIn converts objects to pods.
func podsIn(items []unstructured.Unstructured) []*v1.Pod {
	var pods []*v1.Pod
	for _, u := range items {
		pod := &v1.Pod{}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, pod) == nil {
			pods = append(pods, pod)
		}
	}
	return pods
}
