package admit

import (
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// affinity checks nodeSelector and the required node affinity.
func affinity(pod *v1.Pod, n *Node) *podsync.Verdict {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err == nil && fits {
		return nil
	}
	return reject("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
}
