package server

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/model"
	"github.com/crisp-cri/crisp/test/model/play"
	"github.com/crisp-cri/crisp/test/ocitest"
)

var (
	modelSeed   = flag.Uint64("model.seed", envNumber("MODEL_SEED"), "the first history that TestModel makes; 0 = the first of all; take another to look for more")
	modelFor    = flag.Duration("model.for", envDuration("MODEL_FOR", -1), "how long TestModel makes histories; 0 = one, less = sixty, whatever it takes")
	modelScript = flag.String("model.script", os.Getenv("MODEL_SCRIPT"), "a script that TestModel plays instead, with the log")
)

func envNumber(name string) uint64 {
	n, _ := strconv.ParseUint(os.Getenv(name), 10, 64)
	return n
}

func envDuration(name string, otherwise time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv(name)); err == nil {
		return d
	}
	return otherwise
}

// Random clients, while crispd and its executor die at any step and steps fail, observe nothing
// that CRI does not allow, and when everything is removed nothing is left. A failure is printed as
// a short script: keep it in testdata/model, and play it with -model.script.
func TestModel(t *testing.T) {
	inMemory(t)
	if *modelScript != "" {
		playKept(t, *modelScript, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
		return
	}
	playMany(t, "", 60)
}

// The same is so for pods of a shim.
func TestModelWithShims(t *testing.T) {
	inMemory(t)
	playMany(t, modelShim, 20)
}

// modelShim is a handler with a shim.
const modelShim = "shim"

// playMany plays histories with pods of a handler: as many as the flags say, or some.
func playMany(t *testing.T, handler string, some int) {
	seed := max(1, *modelSeed) // the same in every run, unless the flag is set
	began, n, events := time.Now(), 0, 0
	for ; n == 0 || time.Since(began) < *modelFor || *modelFor < 0 && n < some; n++ {
		s := play.Generate(seed+uint64(n), play.Fake)
		h, err := playOn(t, s, handler, nil)
		events += len(h)
		if err != nil {
			t.Logf("seed %d, history %d after %v", seed+uint64(n), n+1, time.Since(began).Round(time.Millisecond))
			reportFailure(t, s, handler, err)
			return
		}
	}
	t.Logf("%d histories of %d events from seed %d on in %v", n, events, seed, time.Since(began).Round(time.Millisecond))
}

// Histories that failed once.
func TestModelAgain(t *testing.T) {
	inMemory(t)
	files, err := filepath.Glob("testdata/model/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { playKept(t, file, nil) })
	}
}

// playKept plays a script from a file several times, as concurrent steps do not always
// interleave in the same order.
func playKept(t *testing.T, file string, log *slog.Logger) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := play.Parse(string(data))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for range 5 {
		if h, err := playOn(t, s, "", log); err != nil {
			t.Fatalf("%v\n\nhistory:\n%v", err, h)
		}
	}
}

// reportFailure fails with the shortest script that still does.
func reportFailure(t *testing.T, s play.Script, handler string, why error) {
	h := model.History(nil)
	s = play.Shrink(s, 2000, func(c play.Script) bool {
		for range 3 { // a failure may depend on what the scheduler does
			if got, err := playOn(t, c, handler, nil); err != nil {
				h, why = got, err
				return true
			}
		}
		return false
	})
	t.Errorf("%v\n\nscript:\n%v\nhistory:\n%v", why, s, h)
}

// playOn plays s on a new fake machine, with pods of a handler.
func playOn(t *testing.T, s play.Script, handler string, log *slog.Logger) (h model.History, err error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	hung := time.AfterFunc(time.Minute, func() {
		panic(fmt.Sprintf("the clock stands still, a goroutine waits for what is no channel:\n%v", s))
	})
	defer hung.Stop()
	defer func() {
		if p := recover(); p != nil {
			t.Logf("panic in script:\n%v", s)
			panic(p)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		n := newModelNode(t, s.Latency, log)
		n.handler = handler
		if err = n.Start(); err != nil {
			return
		}
		h, err = play.Play(t.Context(), n, s, model.Rules{})
		n.end()
	})
	return h, err
}

// A modelNode is the fake machine as scripts see it. Each step has a duration from the seed.
type modelNode struct {
	t       *testing.T
	log     *slog.Logger
	handler string // of its pods
	machine *ocitest.Machine
	images  *modelImages
	net     *modelNetwork

	conn    atomic.Pointer[play.Conn] // used by clients while crispd restarts
	server  *Server
	runtime *oci.Runtime

	latency uint64
	mu      sync.Mutex
	steps   uint64 // guarded by mu
	failAt  int    // 0 = no step fails, else counts down; guarded by mu
}

func newModelNode(t *testing.T, latency uint64, log *slog.Logger) *modelNode {
	n := &modelNode{t: t, log: log, machine: ocitest.NewMachine(t), latency: latency}
	n.images = &modelImages{fakeImages: newFakeImages(t), fuse: &n.machine.Fuse}
	n.images.list[0].Config.Config.StopSignal = ""
	n.net = &modelNetwork{fuse: &n.machine.Fuse}
	n.machine.Fuse.Meet(n.meet)
	return n
}

// meet delays a step, or makes it fail.
func (n *modelNode) meet(step string) error {
	n.mu.Lock()
	n.steps++
	nth := n.steps
	fails := n.failAt == 1
	n.failAt = max(n.failAt-1, 0)
	n.mu.Unlock()
	if fails {
		return fault.Unavailable.Errorf("%s: broken for the test", step)
	}
	if step == "keep" || step == "remove" || n.latency == 0 {
		return nil
	}
	h := fnv.New64a()
	fmt.Fprint(h, n.latency, nth)
	switch v := h.Sum64(); v % 16 {
	case 0:
		time.Sleep(time.Second)
	case 1, 2, 3, 4, 5:
		time.Sleep(time.Duration(v>>8%20) * time.Millisecond)
	}
	return nil
}

func (n *modelNode) Runtime() cri.RuntimeServiceClient {
	return handlerClient{cri.NewRuntimeServiceClient(n.conn.Load()), n.handler}
}

// A handlerClient runs the pods of a handler.
type handlerClient struct {
	cri.RuntimeServiceClient
	handler string
}

func (c handlerClient) RunPodSandbox(ctx context.Context, req *cri.RunPodSandboxRequest, o ...grpc.CallOption) (*cri.RunPodSandboxResponse, error) {
	return c.RuntimeServiceClient.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: req.Config, RuntimeHandler: c.handler}, o...)
}
func (n *modelNode) Images() cri.ImageServiceClient { return cri.NewImageServiceClient(n.conn.Load()) }

func (n *modelNode) Ref(image string) string {
	if image == "" {
		return testImage
	}
	return "registry.test/" + image + ":latest"
}

func (n *modelNode) Arm(step int, after bool) bool {
	n.machine.Fuse.Set(step, after)
	return true
}

func (n *modelNode) Dead() bool { return n.machine.Fuse.Blown() }

// Kill lets the remaining goroutines of the dead crispd end; they have no effect any more.
func (n *modelNode) Kill() {
	if !n.Dead() {
		n.machine.Fuse.Set(1, false)
		_ = n.machine.Fuse.Step("end", func() error { return nil })
	}
	n.conn.Load().Cut()
	if err := n.Stop(); err != nil {
		n.log.Info("dead crispd did not close", "err", err)
	}
	n.machine.Fuse.Set(0, false)
}

func (n *modelNode) KillExecutor() { n.machine.Executor.Crash() }

func (n *modelNode) Stop() error {
	n.conn.Load().Cut()
	err := n.server.Close()
	n.conn.Load().Wait()
	if cerr := n.runtime.Close(); err == nil {
		err = cerr
	}
	return err
}

func (n *modelNode) Start() error {
	events := NewEvents()
	o := n.machine.Options(n.t)
	o.OnEvent, o.Log = events.Publish, n.log
	var err error
	if n.runtime, err = oci.Open(n.t.Context(), o); err != nil {
		return err
	}
	so := Options{
		Runtime: n.runtime, Images: n.images, RootFS: n.images, Network: n.net, Events: events, Log: o.Log, Version: "1.2.3",
		Root: n.machine.Root, State: n.machine.State,
		Handlers: map[string]Handler{modelShim: {Shim: &oci.Shim{Path: "/proc/self/exe"}}},
	}
	so.Streaming.Listener = newDeafListener()
	if n.server, err = New(so); err != nil {
		return err
	}
	conn := play.NewConn(n.server.unary, n.server.stream, n.Dead)
	Register(conn, n.server)
	n.conn.Store(conn)
	return n.server.Start(n.t.Context())
}

func (n *modelNode) FailAt(step int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failAt = step
}

func (n *modelNode) Mend() { n.FailAt(0) }

func (n *modelNode) Settle(bool) {
	time.Sleep(uncollectedLife + taskLife + time.Minute)
	synctest.Wait()
}

func (n *modelNode) Left() []string {
	as := &node{machine: n.machine, store: n.images.fakeImages, net: &n.net.fakeNetwork}
	left := as.left()
	for _, c := range n.runtime.Containers() {
		left = append(left, "container in memory "+c.ID())
	}
	for _, sb := range n.runtime.Sandboxes() {
		left = append(left, "sandbox in memory "+sb.ID())
	}
	return left
}

// end ends everything, so that the test's bubble can end.
func (n *modelNode) end() {
	n.Kill()
	n.machine.Reboot()
}

// modelImages has a registry, with one more image than the store has at first.
type modelImages struct {
	*fakeImages
	fuse *ocitest.Fuse
}

func (f *modelImages) Pull(ctx context.Context, ref string, as registry.Caller) (img image.Image, err error) {
	err = f.fuse.Step("pull", func() error {
		if img, err = f.Get(ref); err == nil {
			return nil
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		img = f.list[0]
		img.ID, img.Tags, img.Digests = "sha256:"+strings.Repeat("7", 64), []string{ref, "other.test/spare:1"}, []string{strings.Replace(testDigest, "/test", "/spare", 1)}
		f.list = append(f.list, img)
		return nil
	})
	return img, err
}

func (f *modelImages) Remove(ctx context.Context, ref string) error {
	return f.fuse.Step("remove image", func() error {
		err := f.fakeImages.Remove(ctx, ref)
		if fault.KindOf(err) == fault.NotFound {
			return nil
		}
		return err
	})
}

func (f *modelImages) Mount(ctx context.Context, key, id string, o rootfs.MountOptions) (dir string, err error) {
	err = f.fuse.Step("mount", func() error {
		dir, err = f.fakeImages.Mount(ctx, key, id, o)
		return err
	})
	return dir, err
}

func (f *modelImages) Unmount(ctx context.Context, key string, remove bool) error {
	return f.fuse.Step("unmount", func() error { return f.fakeImages.Unmount(ctx, key, remove) })
}

// modelNetwork does nothing for a dead crispd.
type modelNetwork struct {
	fakeNetwork
	fuse *ocitest.Fuse
}

func (f *modelNetwork) Attach(ctx context.Context, p network.Pod) (r network.Result, err error) {
	err = f.fuse.Step("attach", func() error {
		r, err = f.fakeNetwork.Attach(ctx, p)
		return err
	})
	return r, err
}

func (f *modelNetwork) Detach(ctx context.Context, p network.Pod) error {
	return f.fuse.Step("detach", func() error { return f.fakeNetwork.Detach(ctx, p) })
}

func (f *modelNetwork) GC(ctx context.Context, keep []string) error {
	return f.fuse.Step("network gc", func() error { return f.fakeNetwork.GC(ctx, slices.Clone(keep)) })
}

// A deafListener accepts nothing, and waits in a way that synctest recognizes.
type deafListener struct {
	closed chan struct{}
	close  func()
}

func newDeafListener() *deafListener {
	l := &deafListener{closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

func (l *deafListener) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

func (l *deafListener) Close() error {
	l.close()
	return nil
}

func (l *deafListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
