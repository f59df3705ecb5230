// Package kubelet compares the agent with the kubelet that it replaces. The real kubelet,
// standalone, and `crisp agent` run the same manifests on crispd, each through a proxy that records
// its calls to the runtime:
//
//	testdata/*.yaml ─┬─▶ kubelet ──▶ proxy ──▶ crispd
//	                 └─▶ agent ────▶ proxy ──▶ crispd
//	                                   │
//	                                 calls ──▶ of each pod ──▶ normal form ──▶ compared
//
// A difference must be explained by a line of the table in explain_test.go; a difference
// without an explanation fails, and so does an explanation without a difference. Random pods live so
// too, and have turns: they are edited, lose something, or see the driver or crispd killed. In addition,
// the agent's handling of random pods is compared with the kubelet's own functions.
// TestSameJobs and TestSameRollouts do so with random Jobs and Deployments and Kubernetes' controllers.
// TestSameVerdicts holds what crisp validate says of manifests against the validation of the
// API server. TestKubeadm makes kubeadm's own calls to crispd. TestMetrics compares the kubelet's metrics
// of pods on crispd with those of the same pods on containerd.
//
// It is a separate module because the kubelet is not made to be imported: its module pins versions
// that the rest of crisp should not have to follow.
package kubelet
