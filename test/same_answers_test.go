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
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// CRI as its client sees it: the same calls are made on crispd and on the containerd in CONTAINERD,
// and what both answer is compared, a field a line. A difference that is not in answerReasons fails.
func TestSameAnswers(t *testing.T) {
	testenv.Need(t, "namespaces") // with systemd, the parents of cgroups would differ
	testenv.Need(t, "containerd-2")
	peer := startContainerd(t)
	src := filepath.Join(sameSources(t), "src")
	t.Cleanup(func() { removeCgroups(sameCgroup) })
	newAsker(t, peer, src).answers(func(a *asker) { a.pod("warm") }) // what it keeps is there before ours looks what there is
	ours, _ := startNode(t)
	sameImages(t, ours, peer)
	for name, part := range map[string]func(*asker){
		"life": (*asker).life, "ends": (*asker).ends, "streams": (*asker).streams, "pods": (*asker).oddPods, "containers": (*asker).oddContainers,
	} {
		t.Run(name, func(t *testing.T) {
			theirs := make(chan []string)
			go func() { theirs <- newAsker(t, peer, src).answers(part) }()
			diff := sameDifference(newAsker(t, ours, src).answers(part), <-theirs)
			for _, r := range answerReasons {
				rest := slices.DeleteFunc(slices.Clone(diff), r.diff.MatchString)
				if n := len(diff) - len(rest); n > 0 {
					t.Logf("%d times: %s", n, r.reason)
				}
				diff = rest
			}
			if len(diff) > 0 {
				t.Error("\n" + strings.Join(diff, "\n"))
			}
		})
	}
}

// An asker makes calls on one runtime, and keeps what it answers, a fact a line.
type asker struct {
	*testing.T
	*node
	src   string                           // see sameSources
	ids   map[string]string                // name → ID
	pods  map[string]*cri.PodSandboxConfig // by name
	facts []string
}

func newAsker(t *testing.T, n *node, src string) *asker {
	return &asker{T: t, node: n, src: src, ids: map[string]string{}, pods: map[string]*cri.PodSandboxConfig{}}
}

// answers returns what part has been answered, without its pods.
func (a *asker) answers(part func(*asker)) []string {
	defer func() {
		for name := range a.pods {
			a.removePod(a.ids[name])
		}
	}()
	part(a)
	return a.facts
}

func (a *asker) removePod(id string) {
	ctx := context.WithoutCancel(a.Context())
	_, err := a.runtime().StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
	if err == nil {
		_, err = a.runtime().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	}
	if err != nil {
		a.Errorf("%s: %v", a.socket, err)
	}
}

func (a *asker) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	for name, id := range a.ids {
		text = strings.ReplaceAll(text, id, "<"+name+">")
	}
	text = strings.NewReplacer(a.node.dir, "DIR", a.src, "SRC").Replace(text)
	a.facts = append(a.facts, sameID.ReplaceAllString(text, "ID"))
}

// report keeps an answer, a field a line, or its error.
func (a *asker) report(what string, m proto.Message, err error) {
	if err != nil {
		a.say("%s: %s", what, a.code(what, err))
		return
	}
	a.fields(what, m.ProtoReflect())
}

// code is what clients can tell apart.
func (a *asker) code(what string, err error) string {
	if err == nil {
		return "ok"
	}
	a.Logf("%s, %s: %v", filepath.Base(a.socket), what, err)
	switch code := status.Code(err); code {
	case codes.NotFound, codes.DeadlineExceeded, codes.Unimplemented:
		return code.String()
	}
	return "refused"
}

var answerTime = regexp.MustCompile(`(_at|timestamp)$`)

// fields keeps the fields that are set, of times and measurements only that they are.
func (a *asker) fields(what string, m protoreflect.Message) {
	if name := m.Descriptor().Name(); name == "UInt64Value" {
		a.say("%s set", what)
		return
	}
	if !m.IsValid() || proto.Size(m.Interface()) == 0 {
		a.say("%s {}", what)
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		path := what + "." + string(f.Name())
		switch {
		case slices.Contains([]string{"info", "containers_statuses", "containers", "psi"}, string(f.Name())):
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				a.say("%s[%s]=%v", path, k, v)
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				if e := v.List().Get(i); f.Kind() == protoreflect.MessageKind {
					a.fields(path+"[]", e.Message())
				} else {
					a.say("%s[]=%v", path, e)
				}
			}
		case f.Kind() == protoreflect.MessageKind:
			a.fields(path, v.Message())
		case answerTime.MatchString(string(f.Name())) || f.Name() == "ip":
			a.say("%s set", path)
		case f.Kind() == protoreflect.EnumKind:
			a.say("%s=%s", path, f.Enum().Values().ByNumber(v.Enum()).Name())
		default:
			a.say("%s=%v", path, v)
		}
		return true
	})
}

func (a *asker) podConfig(name string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "same", Uid: "uid-" + name}, Hostname: name,
		LogDirectory: filepath.Join(a.node.dir, "logs", name),
		Labels:       map[string]string{"pod": name}, Annotations: map[string]string{"note": "of " + name},
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: "/" + sameCgroup, SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
		}},
	}
}

func (a *asker) pod(name string) {
	config := a.podConfig(name)
	run, err := a.runtime().RunPodSandbox(a.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		a.Errorf("%s: %v", a.socket, err)
		return
	}
	a.ids[name], a.pods[name] = run.PodSandboxId, config
}

func (a *asker) config(name string, command ...string) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: testImage}, LogPath: name + ".log",
		Command: append([]string{"/testbin"}, command...),
		Labels:  map[string]string{"container": name}, Annotations: map[string]string{"note": "of " + name},
		Linux: &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{}, SecurityContext: &cri.LinuxContainerSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
		}},
	}
}

// create creates a container in a pod, and returns its ID.
func (a *asker) create(pod string, config *cri.ContainerConfig) (string, error) {
	made, err := a.runtime().CreateContainer(a.Context(), &cri.CreateContainerRequest{PodSandboxId: a.ids[pod], Config: config, SandboxConfig: a.pods[pod]})
	return made.GetContainerId(), err
}

func (a *asker) start(id string) error {
	_, err := a.runtime().StartContainer(a.Context(), &cri.StartContainerRequest{ContainerId: id})
	return err
}

func (a *asker) stop(id string, timeout int64) error {
	_, err := a.runtime().StopContainer(a.Context(), &cri.StopContainerRequest{ContainerId: id, Timeout: timeout})
	return err
}

// run runs a container, which must work.
func (a *asker) run(pod string, config *cri.ContainerConfig) string {
	id, err := a.create(pod, config)
	if err == nil {
		err = a.start(id)
	}
	if err != nil {
		a.Errorf("%s: %v", a.socket, err)
	}
	return id
}

// until waits until a container has exited, or written what to its log.
func (a *asker) until(id, what string) *cri.ContainerStatus {
	for ; ; time.Sleep(10 * time.Millisecond) {
		st, err := a.runtime().ContainerStatus(a.Context(), &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil || st.Status.State == cri.ContainerState_CONTAINER_EXITED {
			return st.GetStatus()
		}
		if text, _ := os.ReadFile(st.Status.LogPath); what != "" && strings.Contains(string(text), what) {
			return st.Status
		}
	}
}
