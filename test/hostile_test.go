package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// hostile has the values to which each text field of each request is set, one field at a time.
var hostile = map[string]string{
	"nul":   "a\x00b",
	"up":    "../../escape/here",
	"lines": "a b\nnameserver 192.0.2.66\n",
	"long":  strings.Repeat("x", 1<<17),
}

// Every RPC answers an empty request, and one with nonsense in one of its fields. An error
// distinguishes the caller's mistake from the runtime's: no panic, no Unknown. No file is in a
// wrong place, and crispd works as before.
func TestHostileRequests(t *testing.T) {
	n, _ := startNode(t)
	n.parents = []string{"escape/here", "escape"} // the client must remove its cgroup_parent
	if err := n.useRegistry(newRegistry()); err != nil {
		t.Fatal(err)
	}
	image, err := testbinImage(n.testbin)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.push("app:latest", image); err != nil {
		t.Fatal(err)
	}
	h := &hostility{t: t, n: n, logs: filepath.Join(n.dir, "a", "b", "logs")}
	h.sandbox, h.container = h.pod("victim")

	descriptors := (&cri.VersionRequest{}).ProtoReflect().Descriptor().ParentFile().Services()
	for i := range descriptors.Len() {
		methods := descriptors.Get(i).Methods()
		for j := range methods.Len() {
			if m := methods.Get(j); !m.IsStreamingServer() {
				h.empty(m)
				h.nonsense(m)
			}
		}
	}

	for _, dir := range []string{h.logs, "."} { // crispd's working directory is the test's
		if path := filepath.Join(dir, hostile["up"]); testenv.Exists(path) || testenv.Exists(filepath.Dir(path)) {
			t.Errorf("it made %s", path)
			_ = os.RemoveAll(filepath.Dir(path))
		}
	}
	log, err := os.ReadFile(filepath.Join(n.dir, "crispd.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "panic") {
			t.Errorf("crispd: %.2000s", line)
		}
	}
	h.pod("after") // crispd works as before
}

// networked matches the fields of a sandbox that need its own network namespace.
var networked = regexp.MustCompile(`hostname|port_mappings|dns_config|sysctls|annotations`)

// A hostility is a running pod for requests to name.
type hostility struct {
	t                  *testing.T
	n                  *node
	logs               string
	sandbox, container string
	count              int
}

// pod runs a pod with one container.
func (h *hostility) pod(name string) (sandbox, container string) {
	h.t.Helper()
	config := h.config()
	config.Metadata.Name = name
	sb, err := h.n.runtime().RunPodSandbox(h.t.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		h.t.Fatal(err)
	}
	c, err := h.n.runtime().CreateContainer(h.t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, Config: h.containerConfig(), SandboxConfig: config})
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.n.runtime().StartContainer(h.t.Context(), &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		h.t.Fatal(err)
	}
	return sb.PodSandboxId, c.ContainerId
}

// config returns the config of a new sandbox.
func (h *hostility) config() *cri.PodSandboxConfig {
	h.count++
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "pod", Namespace: "test", Uid: fmt.Sprint(h.count)},
		Hostname: "host", LogDirectory: h.logs, PortMappings: []*cri.PortMapping{{ContainerPort: 80}},
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{}},
	}
}

func (h *hostility) containerConfig() *cri.ContainerConfig {
	h.count++
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "c", Attempt: uint32(h.count)}, Image: &cri.ImageSpec{Image: testImage},
		Args: []string{"sleep", "for-ever"}, LogPath: fmt.Sprintf("c/%d.log", h.count),
		Mounts:  []*cri.Mount{{ContainerPath: "/m", HostPath: h.n.dir, Readonly: true}},
		Envs:    []*cri.KeyValue{{Key: "A", Value: []byte("b")}},
		Devices: []*cri.Device{{ContainerPath: "/dev/null", HostPath: "/dev/null", Permissions: "rw"}},
		Linux:   &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{}, SecurityContext: &cri.LinuxContainerSecurityContext{}},
	}
}

// request returns a request that succeeds, or would if the objects that it names allowed
// it.
func (h *hostility) request(m protoreflect.MethodDescriptor) proto.Message {
	image := &cri.ImageSpec{Image: h.n.registry.host() + "/app:latest"}
	switch m.Name() {
	case "RunPodSandbox":
		return &cri.RunPodSandboxRequest{Config: h.config()}
	case "CreateContainer":
		return &cri.CreateContainerRequest{PodSandboxId: h.sandbox, Config: h.containerConfig(), SandboxConfig: h.config()}
	case "PullImage":
		return &cri.PullImageRequest{Image: image}
	case "ExecSync":
		return &cri.ExecSyncRequest{ContainerId: h.container, Cmd: []string{"/testbin"}, Timeout: 20}
	case "Exec":
		return &cri.ExecRequest{ContainerId: h.container, Cmd: []string{"/testbin"}, Stdout: true}
	case "RestorePod":
		return &cri.RestorePodRequest{Config: h.config()}
	}
	req := h.empty1(m)
	fields := req.ProtoReflect().Descriptor().Fields()
	for name, id := range map[protoreflect.Name]string{"container_id": h.container, "pod_sandbox_id": h.sandbox} {
		if f := fields.ByName(name); f != nil {
			req.ProtoReflect().Set(f, protoreflect.ValueOfString(id))
		}
	}
	return req
}

func (h *hostility) empty1(m protoreflect.MethodDescriptor) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	if err != nil {
		h.t.Fatal(err)
	}
	return kind.New().Interface()
}

func (h *hostility) call(m protoreflect.MethodDescriptor, req proto.Message) error {
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		h.t.Fatal(err)
	}
	resp := kind.New().Interface()
	err = h.n.conn.Invoke(ctx, fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()), req, resp)
	switch r := resp.(type) { // undo what the call has made
	case *cri.RunPodSandboxResponse:
		h.end(r.PodSandboxId)
	case *cri.CreateContainerResponse:
		if _, err := h.n.runtime().RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: r.ContainerId}); err != nil && r.ContainerId != "" {
			h.t.Error(err)
		}
	}
	return err
}

func (h *hostility) end(sandbox string) {
	if sandbox == "" {
		return
	}
	if _, err := h.n.runtime().StopPodSandbox(h.t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		h.t.Error(err)
	}
	if _, err := h.n.runtime().RemovePodSandbox(h.t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		h.t.Error(err)
	}
}

// empty: an empty request is answered; if it is about one object, the error must say that the name
// is missing.
func (h *hostility) empty(m protoreflect.MethodDescriptor) {
	err := h.call(m, h.empty1(m))
	name := string(m.Name())
	if strings.HasPrefix(name, "List") || slices.Contains([]string{"Version", "Status", "RuntimeConfig", "UpdateRuntimeConfig", "ImageFsInfo"}, name) {
		if err != nil {
			h.t.Errorf("empty %s: %v", name, err)
		}
		return
	}
	if status.Code(err) != codes.InvalidArgument {
		h.t.Errorf("empty %s: %v, want InvalidArgument", name, err)
	}
}

// nonsense sets each text field of the request to each hostile value.
func (h *hostility) nonsense(m protoreflect.MethodDescriptor) {
	for _, path := range texts(m.Input(), nil) {
		if copied := path[0].Name() == "sandbox_config"; copied && path.String() != "sandbox_config.metadata.namespace" {
			continue // it is not read: the sandbox has its own
		}
		for what, text := range hostile {
			req := h.request(m)
			set(req.ProtoReflect(), path, text)
			if r, ok := req.(*cri.RunPodSandboxRequest); ok && !networked.MatchString(path.String()) {
				security := r.Config.Linux.SecurityContext
				if security.NamespaceOptions == nil {
					security.NamespaceOptions = &cri.NamespaceOption{}
				}
				security.NamespaceOptions.Network = cri.NamespaceMode_NODE // faster
			}
			err := h.call(m, req)
			code := status.Code(err)
			where := fmt.Sprintf("%s with %s in %s", m.Name(), what, path)
			switch {
			case what == "nul" && (code != codes.InvalidArgument || !strings.Contains(err.Error(), string(path[len(path)-1].Name()))):
				h.t.Errorf("%s: %.300v, want InvalidArgument and the field's name", where, err)
			case m.Name() == "ExecSync" && path.String() == "cmd" && code == codes.Unknown: // there is no such program; the kubelet reads the text
			case !slices.Contains([]codes.Code{codes.OK, codes.InvalidArgument, codes.NotFound}, code):
				h.t.Errorf("%s: %.300v", where, err)
			}
		}
	}
}

// A fieldPath leads from a message to one of its text fields.
type fieldPath []protoreflect.FieldDescriptor

func (p fieldPath) String() string {
	var names []string
	for _, f := range p {
		names = append(names, string(f.Name()))
	}
	return strings.Join(names, ".")
}

// texts returns the paths of all text fields of a message, including those in nested
// messages, except Windows' fields.
func texts(m protoreflect.MessageDescriptor, above fieldPath) (paths []fieldPath) {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		path := append(slices.Clone(above), f)
		kind, message := f.Kind(), f.Message()
		if f.IsMap() {
			kind, message = f.MapValue().Kind(), f.MapValue().Message()
		}
		switch {
		case f.Name() == "windows":
		case kind == protoreflect.StringKind || kind == protoreflect.BytesKind:
			paths = append(paths, path)
		case kind == protoreflect.MessageKind && !slices.Contains(above, f):
			paths = append(paths, texts(message, path)...)
		}
	}
	return paths
}

// set puts text at the path: into the first element of a list, and as both key and value of
// a map.
func set(m protoreflect.Message, path fieldPath, text string) {
	f, v := path[0], protoreflect.ValueOfString(text)
	if f.Kind() == protoreflect.BytesKind {
		v = protoreflect.ValueOfBytes([]byte(text))
	}
	switch {
	case f.IsMap() && len(path) == 1:
		m.Mutable(f).Map().Set(v.MapKey(), v)
	case f.IsMap():
		elem := m.Mutable(f).Map().NewValue()
		set(elem.Message(), path[1:], text)
		m.Mutable(f).Map().Set(protoreflect.ValueOfString("key").MapKey(), elem)
	case f.IsList() && len(path) == 1:
		list := m.Mutable(f).List()
		list.Truncate(0)
		list.Append(v)
	case f.IsList():
		list := m.Mutable(f).List()
		if list.Len() == 0 {
			list.Append(list.NewElement())
		}
		set(list.Get(0).Message(), path[1:], text)
	case len(path) == 1:
		m.Set(f, v)
	default:
		set(m.Mutable(f).Message(), path[1:], text)
	}
}
