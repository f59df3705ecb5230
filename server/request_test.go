package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
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
		if err := checkRequest(req, func(protoreflect.Message) {}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A field that a later CRI has is told of once, wherever it is, and not once per request or
// without a limit; the request is handled as if it were not there.
func TestUnknownFieldsAreToldOfOnce(t *testing.T) {
	n := newNode(t)
	var out bytes.Buffer
	n.server.log = slog.New(slog.NewTextHandler(&out, nil))
	config := pod("web")
	later := func(number protowire.Number) protoreflect.RawFields {
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1)
	}
	// NamespaceOption.cgroupns_options of CRI 0.38 is such a field.
	config.Linux.SecurityContext.NamespaceOptions.ProtoReflect().SetUnknown(later(77))
	n.run(t, config)
	n.run(t, config)
	if got := strings.Count(out.String(), "message=runtime.v1.NamespaceOption field=77"); got != 1 {
		t.Errorf("it was told of %d times, want once:\n%s", got, out.String())
	}
	stream := &cri.GetEventsRequest{}
	stream.ProtoReflect().SetUnknown(later(78))
	events, err := n.GetContainerEvents(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	for !n.server.events.hub.HasSubscribers() { // the subscription has no answer to wait for
	}
	_ = events
	for i := range 2 * maxUnknown {
		version := &cri.VersionRequest{}
		version.ProtoReflect().SetUnknown(later(protowire.Number(1000 + i)))
		if _, err := n.Version(t.Context(), version); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(out.String(), "unknown field"); got != maxUnknown || !strings.Contains(out.String(), "field=78") {
		t.Errorf("%d fields were told of, want %d, and that of a stream:\n%.500s", got, maxUnknown, out.String())
	}
}

// What a later CRI adds to restrict a container is refused, not ignored.
func TestWhatALaterCRIRestrictsIsRefused(t *testing.T) {
	n := newNode(t)
	sandbox := n.run(t, pod("web"))
	oci := &cri.SecurityProfile{ProfileType: 3} // OCI: a profile from a registry
	for name, set := range map[string]func(*cri.LinuxContainerSecurityContext){
		"seccomp":  func(sc *cri.LinuxContainerSecurityContext) { sc.Seccomp = oci },
		"apparmor": func(sc *cri.LinuxContainerSecurityContext) { sc.Apparmor = oci },
	} {
		config := forever("app")
		set(config.Linux.SecurityContext)
		_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: config})
		wantCode(t, name, err, "InvalidArgument")
	}
	for _, rpc := range []string{"PullSecurityProfile", "ListSecurityProfiles", "RemoveSecurityProfile"} {
		err := n.conn.Invoke(t.Context(), "/runtime.v1.RuntimeService/"+rpc, &cri.VersionRequest{}, &cri.VersionResponse{})
		wantCode(t, rpc, err, "Unimplemented")
	}
}
