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

// pulling says of the pods that wait for an image how far that is, by namespace/name. The
// runtime is asked only if there are pods that wait for something; one that does not tell is no
// error.
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

// waits reports whether a pod waits for something, which may be an image.
func waits(pod *v1.Pod) bool {
	ready, all := status.Count(pod)
	return ready < all && !podsync.Terminal(&pod.Status) && pod.DeletionTimestamp == nil
}

// pullOf tells of the pull that a pod waits for; "" if there is none.
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

// pullFor is the pull that a pod waits for, by namespace/name.
func (c *cli) pullFor(pod string) (pulls.Pull, bool) {
	return pulls.Of(c.pulls(), pod)
}

// pulls are the pulls under way, as the runtime tells; none if it does not.
func (c *cli) pulls() []pulls.Pull {
	watcher := pullwatch.New(c.endpoint)
	defer watcher.Close()
	return watcher.List(c.ctx)
}

// dialRuntime connects to the runtime's socket, for services that are not CRI's.
func (c *cli) dialRuntime() (*grpc.ClientConn, error) {
	return grpc.NewClient(c.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
}

// podsIn reads objects that are pods.
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
