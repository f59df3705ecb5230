// Package kubelet holds the agent against the kubelet that it stands in for. The
// real kubelet, standalone, and `crisp agent` run the same manifests on crispd,
// each through a proxy that records what it asks of the runtime:
//
//	testdata/*.yaml ─┬─▶ kubelet ──▶ proxy ──▶ crispd
//	                 └─▶ agent ────▶ proxy ──▶ crispd
//	                                   │
//	                                 calls ──▶ of each pod ──▶ normal form ──▶ compared
//
// What differs must be explained by a line of the table in explain_test.go; what
// is not explained fails, and so does an explanation of nothing. Besides, what
// the agent makes of random pods is compared with the kubelet's own functions.
// TestKubeadm has kubeadm's own code ask of crispd what it asks of a runtime.
// TestMetrics holds what the kubelet shows of pods on crispd against what it shows of
// the same pods on containerd.
//
// It is a module of its own because the kubelet is not made to be imported: its
// module pins versions that nothing else should have to follow.
package kubelet
