//go:build tools

package kubelet

import _ "k8s.io/kubernetes/cmd/kubelet/app" // the kubelet, built by make test-kubelet
