package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/ocitest"
)

// FuzzCRI sends a sequence of requests that could succeed except for a few fields, which are
// changed: numbers, enums, texts, more elements or fewer. Each is answered with a code that says
// whose mistake it was, without a panic, without much memory and without a file that no request
// named. Afterwards everything can be removed, nothing is left, and a pod runs as before.
func FuzzCRI(f *testing.F) {
	if _, err := os.Stat("/dev/shm"); err == nil {
		f.Setenv("TMPDIR", "/dev/shm") // a machine for each input
	}
	methods := criMethods()
	index := func(name protoreflect.Name) byte {
		return byte(slices.IndexFunc(methods, func(m protoreflect.MethodDescriptor) bool { return m.Name() == name }))
	}
	begin := []byte{index("RunPodSandbox"), 0, index("CreateContainer"), 0, index("StartContainer"), 0}
	random := rand.New(rand.NewPCG(1, 2))
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for i, m := range methods {
		steps := append(slices.Clone(begin), byte(i), 0)
		ways := waysInto(m.Input(), nil)
		for at, way := range slices.Repeat(ways, rounds) {
			steps = append(append(append(steps, byte(i), 1), way...), byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32()))
			if at%8 == 7 {
				f.Add(steps)
				steps = slices.Clone(begin)
			}
		}
		f.Add(steps)
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		u := newUnfriendly(t, steps)
		for range 14 {
			if len(u.steps) == 0 {
				break
			}
			u.step(methods[u.pick(len(methods))])
		}
		u.end()
	})
}

// criMethods returns the methods of both services, by name.
func criMethods() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	services := (&cri.VersionRequest{}).ProtoReflect().Descriptor().ParentFile().Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			all = append(all, services.Get(i).Methods().Get(j))
		}
	}
	slices.SortFunc(all, func(a, b protoreflect.MethodDescriptor) int {
		return strings.Compare(string(a.Name()), string(b.Name()))
	})
	return all
}

// waysInto returns the bytes that lead mutate to each field of a message, and to those of nested
// messages.
func waysInto(m protoreflect.MessageDescriptor, above []protoreflect.MessageDescriptor) (ways [][]byte) {
	if slices.Contains(above, m) {
		return nil
	}
	for i := range m.Fields().Len() {
		f, way := m.Fields().Get(i), []byte{byte(i), 3}
		if f.Name() == "windows" {
			continue
		}
		in := f.Message()
		if f.IsMap() {
			in, way = nil, append(way, byte(i))
		}
		if in == nil {
			ways = append(ways, way)
			continue
		}
		for _, rest := range waysInto(in, append(above, m)) {
			ways = append(ways, slices.Concat(way, rest))
		}
	}
	return ways
}

// An unfriendly is a client that makes its requests from bytes.
type unfriendly struct {
	*node
	t     *testing.T
	steps []byte
	bugs  *panics
	base  string // a directory that contains only the path to dir
	dir   string // contains all paths that requests name
	here  []string
	texts []string

	sandboxes, containers []string
	serial                int
}

func newUnfriendly(t *testing.T, steps []byte) *unfriendly {
	u := &unfriendly{t: t, steps: steps, bugs: &panics{}, base: t.TempDir()}
	u.dir = filepath.Join(u.base, "a", "b", "c")
	mkdir(u.dir)
	for _, err := range []error{
		os.WriteFile(filepath.Join(u.dir, "file"), []byte("{}"), 0o600), os.Symlink("loop", filepath.Join(u.dir, "loop")),
		os.Symlink("nowhere", filepath.Join(u.dir, "link")), unix.Mkfifo(filepath.Join(u.dir, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	u.here = names(t, ".")
	u.node = &node{machine: ocitest.NewMachine(t), store: newFakeImages(t), net: &fakeNetwork{}, log: slog.New(u.bugs)}
	u.node.start(t)
	u.texts = []string{
		"", "a", ".", "..", "../../escape", "x/../../../escape/here", u.dir, u.dir + "/new/dir", u.dir + "/file", u.dir + "/file/x", u.dir + "/link",
		u.dir + "/loop", u.dir + "/loop/x", u.dir + "/fifo", u.dir + "/./x//y/", "/dev/null", "a b\nnameserver 192.0.2.66\n", "a\x00b", "é\u202e", "%s%n", strings.Repeat("x", 1<<17),
		strings.Repeat("x", 300), strings.Repeat("d/", 3000), testImage, testDigest, testID, testID[:12], "nowhere:1", "UPPER@case", "sha256:" + strings.Repeat("0", 64),
		"0", "1", "-1", "0-3", "3-0", "0-18446744073709551615", "4294967296", "9223372036854775808", "1e999", "NaN", "10M", "10Mi", "-5k",
		"kernel.shm_rmid_forced", "net.ipv4.ip_unprivileged_port_start", "net/ipv4/../../kernel/core_pattern", "fs.mqueue.msg_max", "net.core.somaxconn", "kernel.hostname",
		"runtime/default", "unconfined", "localhost/" + u.dir + "/file", "localhost/", "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth", "cdi.k8s.io/x",
		"vendor.com/class=dev", "ALL", "CAP_SYS_ADMIN", "NET_RAW", "rwm", "rrr", "crisp", "testbin", "missing", "exit", "print", "root", "web", "staff", "nobody:", ":50", "web:staff", "1000:1000",
		"2MB", "1GB", "hugepages-2Mi", "memory.high", "cpu.weight", "memory.max", "../cgroup.procs", "kubepods.slice", "system_u", "s0:c1,c2", "127.0.0.1", "::1", "::ffff:1.2.3.4", "fe80::1%eth0", "10.0.0.0/8",
	}
	return u
}

// pick returns a number below n from the next byte, 0 if there are no more bytes.
func (u *unfriendly) pick(n int) int {
	if len(u.steps) == 0 {
		return 0
	}
	b := u.steps[0]
	u.steps = u.steps[1:]
	return int(b) % n
}

// text returns a known text, or one of the bytes themselves. Only known texts have a slash: other
// paths must not be touched.
func (u *unfriendly) text() string {
	ids := append(slices.Clone(u.sandboxes), u.containers...)
	at := u.pick(len(u.texts) + len(ids) + 8)
	switch {
	case at < len(u.texts):
		return u.texts[at]
	case at < len(u.texts)+len(ids):
		return ids[at-len(u.texts)]
	}
	n := min(u.pick(64), len(u.steps))
	raw := strings.ToValidUTF8(string(u.steps[:n]), "?")
	u.steps = u.steps[n:]
	return strings.ReplaceAll(raw, "/", "_")
}

func (u *unfriendly) number() int64 {
	numbers := []int64{0, 1, -1, 2, 7, 64, 1000, 65535, 65536, 1 << 20, 1 << 31, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64, math.MaxUint32, 1 << 40}
	if at := u.pick(len(numbers) + 4); at < len(numbers) {
		return numbers[at]
	}
	return int64(u.pick(256))<<8 + int64(u.pick(256))
}

// step makes one request.
func (u *unfriendly) step(m protoreflect.MethodDescriptor) {
	req := u.request(m)
	for range u.pick(4) {
		u.mutate(req.ProtoReflect(), 0)
	}
	before := allocated()
	err := u.call(m, req)
	what := fmt.Sprintf("%s of %.3000s", m.Name(), prototext.Format(req))
	if text := u.bugs.said(); text != "" {
		u.t.Fatalf("%s: %s", what, text)
	}
	if more := allocated() - before; more > 256<<20 {
		u.t.Errorf("%s took %d MiB of memory", what, more>>20)
	}
	if !u.answered(m, err) {
		u.t.Errorf("%s: %v", what, err)
	}
}

var codeIn = regexp.MustCompile(`code = (\w+) `)

// answered reports whether a client can act on the answer.
func (u *unfriendly) answered(m protoreflect.MethodDescriptor, err error) bool {
	if err == nil {
		return true
	}
	code := ""
	if match := codeIn.FindStringSubmatch(err.Error()); match != nil {
		code = match[1]
	}
	switch code {
	case "InvalidArgument", "NotFound", "AlreadyExists", "FailedPrecondition", "Unimplemented":
		return true
	case "DeadlineExceeded": // it runs until a client ends it
		return m.Name() == "ExecSync" || m.Name() == "GetContainerEvents"
	case "Unknown": // the kubelet reads the text
		return strings.Contains(err.Error(), "desc = ImageVolumeMountFailed: ")
	}
	return false
}

func (u *unfriendly) call(m protoreflect.MethodDescriptor, req proto.Message) error {
	limit := 20 * time.Second
	if m.Name() == "ExecSync" || m.Name() == "GetContainerEvents" {
		limit = 50 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(u.t.Context(), limit)
	defer cancel()
	resp := newMessage(u.t, m.Output())
	method := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		err := u.conn.Invoke(ctx, method, req, resp)
		switch r := resp.(type) {
		case *cri.RunPodSandboxResponse:
			u.sandboxes = appendID(u.sandboxes, r.PodSandboxId)
		case *cri.RestorePodResponse:
			u.sandboxes = appendID(u.sandboxes, r.PodSandboxId)
		case *cri.CreateContainerResponse:
			u.containers = appendID(u.containers, r.ContainerId)
		}
		return err
	}
	stream, err := u.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err == nil {
		err = stream.SendMsg(req)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	for err == nil {
		err = stream.RecvMsg(resp)
	}
	if err == io.EOF {
		return nil
	}
	return err
}

func appendID(ids []string, id string) []string {
	if id == "" || slices.Contains(ids, id) {
		return ids
	}
	return append(ids, id)
}

func newMessage(t *testing.T, d protoreflect.MessageDescriptor) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New().Interface()
}

// request returns a request that succeeds, or would if the objects that it names allowed it.
func (u *unfriendly) request(m protoreflect.MethodDescriptor) proto.Message {
	u.serial++
	config := func() *cri.PodSandboxConfig {
		c := pod(fmt.Sprint("pod", u.serial))
		c.LogDirectory = filepath.Join(u.dir, "logs")
		return c
	}
	c := container(fmt.Sprint("c", u.serial), "print", "hello", "sleep", "for-ever")
	c.LogPath = fmt.Sprintf("c/%d.log", u.serial)
	c.Mounts = []*cri.Mount{{ContainerPath: "/m", HostPath: u.dir, Readonly: true}}
	c.Envs = []*cri.KeyValue{{Key: "A", Value: []byte("b")}}
	image := &cri.ImageSpec{Image: testImage}
	switch m.Name() {
	case "RunPodSandbox":
		return &cri.RunPodSandboxRequest{Config: config()}
	case "CreateContainer":
		return &cri.CreateContainerRequest{PodSandboxId: last(u.sandboxes), Config: c, SandboxConfig: config()}
	case "ExecSync":
		return &cri.ExecSyncRequest{ContainerId: last(u.containers), Cmd: []string{"testbin", "print", "x"}}
	case "Exec":
		return &cri.ExecRequest{ContainerId: last(u.containers), Cmd: []string{"testbin"}, Stdout: true}
	case "Attach":
		return &cri.AttachRequest{ContainerId: last(u.containers), Stdout: true}
	case "PullImage":
		return &cri.PullImageRequest{Image: image, SandboxConfig: config()}
	case "ImageStatus":
		return &cri.ImageStatusRequest{Image: image}
	case "CheckpointContainer":
		return &cri.CheckpointContainerRequest{ContainerId: last(u.containers), Location: filepath.Join(u.dir, "checkpoint.tar")}
	case "CheckpointPod":
		return &cri.CheckpointPodRequest{PodSandboxId: last(u.sandboxes), ContainerIds: []string{last(u.containers)}, OutputPath: mkdir(filepath.Join(u.dir, fmt.Sprint("pod", u.serial)))}
	case "RestorePod":
		saved, _ := filepath.Glob(filepath.Join(u.dir, "pod*", podDir))
		req := &cri.RestorePodRequest{Config: config(), ContainerConfigs: []*cri.ContainerConfig{c}}
		if len(saved) > 0 {
			req.CheckpointPath = filepath.Dir(saved[0])
		}
		return req
	}
	req := newMessage(u.t, m.Input())
	fields := req.ProtoReflect().Descriptor().Fields()
	for name, id := range map[protoreflect.Name]string{"container_id": last(u.containers), "pod_sandbox_id": last(u.sandboxes)} {
		if f := fields.ByName(name); f != nil {
			req.ProtoReflect().Set(f, protoreflect.ValueOfString(id))
		}
	}
	return req
}

func last(ids []string) string {
	if len(ids) == 0 {
		return "feed"
	}
	return ids[len(ids)-1]
}

// mutate changes one field somewhere in m.
func (u *unfriendly) mutate(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	if fields.Len() == 0 {
		return
	}
	f := fields.Get(u.pick(fields.Len()))
	how := u.pick(8)
	switch {
	case f.Name() == "windows" || depth > 8:
	case how == 0:
		m.Clear(f)
	case f.IsMap():
		for i := range []int{1, 1, 1, 1, 1, 2, 3, 1000}[how] {
			key := u.scalar(f.MapKey())
			if i > 2 {
				key = protoreflect.ValueOfString(fmt.Sprint(i))
			}
			v := m.Mutable(f).Map().NewValue()
			if f.MapValue().Message() != nil {
				u.mutate(v.Message(), depth+1)
			} else {
				v = u.scalar(f.MapValue())
			}
			m.Mutable(f).Map().Set(key.MapKey(), v)
		}
	case f.IsList():
		u.mutateList(m.Mutable(f).List(), f, how, depth)
	case f.Message() != nil:
		if in := m.Mutable(f).Message(); how > 1 {
			u.mutate(in, depth+1)
		}
	default:
		m.Set(f, u.scalar(f))
	}
}

func (u *unfriendly) mutateList(list protoreflect.List, f protoreflect.FieldDescriptor, how, depth int) {
	switch {
	case how == 1:
		list.Truncate(list.Len() / 2)
		return
	case how == 2 && list.Len() > 0: // a duplicate, once or very often
		for range []int{1, 2, 2000}[u.pick(3)] {
			list.Append(list.Get(0))
		}
		return
	case how < 6 || list.Len() == 0:
		list.Append(list.NewElement())
	}
	at := list.Len() - 1
	if how == 7 {
		at = u.pick(list.Len())
	}
	if f.Message() != nil {
		u.mutate(list.Get(at).Message(), depth+1)
		u.mutate(list.Get(at).Message(), depth+1)
	} else {
		list.Set(at, u.scalar(f))
	}
}

// scalar returns a value for a field that is not a message.
func (u *unfriendly) scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(u.text())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(u.text()))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(u.pick(2) == 1)
	case protoreflect.EnumKind:
		if n := f.Enum().Values().Len(); u.pick(8) > 1 {
			return protoreflect.ValueOfEnum(f.Enum().Values().Get(u.pick(n)).Number())
		}
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(u.number()))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(u.number()))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(u.number()))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(u.number())
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(u.number()))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64([]float64{0, -1, math.NaN(), math.Inf(1), 1e300}[u.pick(5)])
	}
	u.t.Fatalf("%s is of kind %v: the test must learn it", f.FullName(), f.Kind())
	return protoreflect.Value{}
}

// end removes all pods as the kubelet does, and checks what is left.
func (u *unfriendly) end() {
	list, err := u.ListPodSandbox(u.t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil {
		u.t.Fatal(err)
	}
	for _, sb := range list.Items {
		if _, err := u.StopPodSandbox(u.t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb.Id}); err != nil {
			u.t.Errorf("stop: %v", err)
		}
		if _, err := u.RemovePodSandbox(u.t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb.Id}); err != nil {
			u.t.Errorf("remove: %v", err)
		}
	}
	u.wantNothingLeft(u.t)
	if _, err := u.store.Get(testImage); err == nil { // unless it was removed
		sb := u.run(u.t, pod("after"))
		u.begin(u.t, sb, forever("after"))
		if _, err := u.RemovePodSandbox(u.t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
			u.t.Errorf("remove the pod that came after: %v", err)
		}
		u.wantNothingLeft(u.t)
	}
	u.stop()
	if text := u.bugs.said(); text != "" {
		u.t.Error(text)
	}
	at := u.base
	for _, want := range []string{"a", "b", "c"} {
		if got := names(u.t, at); !slices.Equal(got, []string{want}) {
			u.t.Errorf("in %s there is %v, want %s alone", at, got, want)
		}
		at = filepath.Join(at, want)
	}
	for _, dir := range []string{u.machine.Root, u.machine.State, u.store.dir} {
		if got := names(u.t, filepath.Dir(dir)); slices.ContainsFunc(got, func(name string) bool { return strings.Trim(name, "0123456789") != "" }) {
			u.t.Errorf("beside %s there is %v", dir, got)
		}
	}
	if got := names(u.t, "."); !slices.Equal(got, u.here) {
		u.t.Errorf("in crispd's own directory there was %v, and is %v", u.here, got)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// allocated returns the cumulative number of bytes that the process has allocated.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// panics is a log that keeps reports of recovered panics, which mean bugs.
type panics struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (p *panics) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }
func (p *panics) WithAttrs([]slog.Attr) slog.Handler               { return p }
func (p *panics) WithGroup(string) slog.Handler                    { return p }

func (p *panics) Handle(_ context.Context, r slog.Record) error {
	if !strings.Contains(r.Message, "panicked") {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&p.text, " %s", a); return true })
	return nil
}

func (p *panics) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}
