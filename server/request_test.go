package server

import (
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The error for an invalid request names the field. TestHostileRequests of package test tries all
// fields of all requests.
func TestCheckRequest(t *testing.T) {
	const nul = "a\x00b"
	container := func(c *cri.ContainerConfig) *cri.CreateContainerRequest {
		return &cri.CreateContainerRequest{PodSandboxId: "1", Config: c}
	}
	for want, req := range map[string]any{
		"the request names no sandbox: pod_sandbox_id is empty": &cri.CreateContainerRequest{},
		"the request names no container: container_id is empty": &cri.StopContainerRequest{Timeout: 1},
		"container_id holds a NUL byte":                         &cri.StopContainerRequest{ContainerId: nul},
		"config.args[1] holds a NUL byte":                       container(&cri.ContainerConfig{Args: []string{"a", nul}}),
		"config.envs[0].value holds a NUL byte":                 container(&cri.ContainerConfig{Envs: []*cri.KeyValue{{Key: "a", Value: []byte(nul)}}}),
		`config.labels["k"] holds a NUL byte`:                   container(&cri.ContainerConfig{Labels: map[string]string{"k": nul}}),
		`config.labels["a\x00b"] holds a NUL byte`:              container(&cri.ContainerConfig{Labels: map[string]string{nul: "v"}}),
		"config.linux.resources.cpuset_cpus holds a NUL byte":   container(&cri.ContainerConfig{Linux: &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{CpusetCpus: nul}}}),
		"": container(&cri.ContainerConfig{Args: []string{"a\nb", "../c"}, Envs: []*cri.KeyValue{{Key: "a", Value: []byte{0xff}}}}),
	} {
		got := ""
		if err := checkRequest(req); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
