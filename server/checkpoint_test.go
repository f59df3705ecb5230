package server

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testdisk"
	"github.com/crisp-cri/crisp/test/testenv"
)

// wantThawed fails the test if anything is frozen, or if files of a checkpoint are left.
func (n *node) wantThawed(t *testing.T) {
	t.Helper()
	if frozen := n.machine.Frozen(); len(frozen) > 0 {
		t.Errorf("frozen: %v", frozen)
	}
	for _, kind := range []string{"checkpoints", "freezes"} {
		if left, _ := filepath.Glob(filepath.Join(n.machine.Root, kind, "*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// write writes into a container's root file system.
func (n *node) write(t *testing.T, id, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.store.dir, id, "written"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A container's archive is restored to another container, in another pod, whose status has the
// original's image. It does not run before it is started, and a restart of crispd in between
// changes nothing.
func TestCheckpointContainer(t *testing.T) {
	n := newNode(t)
	config := forever("app")
	id := n.begin(t, n.run(t, pod("web")), config)
	n.write(t, id, "text")
	archive := filepath.Join(t.TempDir(), "c.tar")
	if _, err := n.CheckpointContainer(t.Context(), &cri.CheckpointContainerRequest{ContainerId: id, Location: archive}); err != nil {
		t.Fatal(err)
	}
	n.wantThawed(t)

	dir := t.TempDir()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := checkpoint.Unpack(t.Context(), f, dir, 1<<20); err != nil {
		t.Fatal(err)
	}
	var c checkpoint.Container
	var spec struct{ Annotations map[string]string }
	if err := errors.Join(checkpoint.Read(dir, checkpoint.ConfigDump, &c), checkpoint.Read(dir, checkpoint.SpecDump, &spec)); err != nil {
		t.Fatal(err)
	}
	if c.ID != id || c.RootfsImageRef != testID || c.RootfsImageName != testImage || c.CheckpointedAt.IsZero() {
		t.Errorf("config.dump is %+v", c)
	}
	// checkpointctl finds the names that it prints in these annotations.
	for key, want := range map[string]string{"container-name": "app", "sandbox-name": "web", "sandbox-namespace": "default"} {
		if got := spec.Annotations["io.kubernetes.cri."+key]; got != want {
			t.Errorf("annotation %s is %q, want %q", key, got, want)
		}
	}

	next := proto.Clone(config).(*cri.ContainerConfig)
	next.Image = &cri.ImageSpec{Image: archive}
	sandbox := n.run(t, pod("next"))
	again := n.create(t, sandbox, next)
	if same := n.create(t, sandbox, next); same != again {
		t.Errorf("a repetition made %s, the first %s", same, again)
	}
	n.restart(t)
	st := n.status(t, again)
	if st.State != cri.ContainerState_CONTAINER_CREATED || st.Image.Image != testImage || st.ImageId != testID {
		t.Errorf("status is %v of %v, %s", st.State, st.Image, st.ImageId)
	}
	if data, err := os.ReadFile(filepath.Join(n.store.dir, again, "written")); err != nil || string(data) != "text" {
		t.Errorf("its root file system has %q (err %v)", data, err)
	}
	if _, err := n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: again}); err != nil {
		t.Fatal(err)
	}
	if calls := n.machine.Calls(wire.MethodRestore); len(calls) != 1 {
		t.Errorf("restores: %v, want 1", calls)
	}
	if st := n.status(t, again); st.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("state is %v", st.State)
	}
}

// A checkpoint that fails, at whatever step, leaves the container running and no archive, not
// even a part of one.
func TestCheckpointContainerFails(t *testing.T) {
	t.Parallel() // it waits for a time limit of a second
	n := newNode(t)
	id := n.begin(t, n.run(t, pod("web")), forever("app"))
	location := filepath.Join(t.TempDir(), "c.tar")
	req := &cri.CheckpointContainerRequest{ContainerId: id, Location: location}
	for _, c := range []struct {
		what string
		fail func(error)
		err  error
		code string
	}{
		{"no CRIU", func(err error) { n.machine.Fail(wire.MethodFreeze, err) }, fault.WrongState.Errorf("CRIU is not installed"), "FailedPrecondition"},
		{"dump", func(err error) { n.machine.Fail(wire.MethodCheckpoint, err) }, fault.Internal.Errorf("criu failed"), "Unknown"},
		{"files", func(err error) { n.store.failing("Diff", err) }, fault.Unavailable.Errorf("no space"), "Unavailable"},
	} {
		c.fail(c.err)
		_, err := n.CheckpointContainer(t.Context(), req)
		wantCode(t, c.what, err, c.code)
		n.wantThawed(t)
		c.fail(nil)
	}
	for what, change := range map[string]func(*cri.CheckpointContainerRequest){
		"relative":     func(r *cri.CheckpointContainerRequest) { r.Location = "c.tar" },
		"no directory": func(r *cri.CheckpointContainerRequest) { r.Location += "/x/c.tar" },
		"a directory":  func(r *cri.CheckpointContainerRequest) { r.Location = filepath.Dir(location) },
		"timeout":      func(r *cri.CheckpointContainerRequest) { r.Timeout = -1 },
	} {
		bad := proto.Clone(req).(*cri.CheckpointContainerRequest)
		change(bad)
		_, err := n.CheckpointContainer(t.Context(), bad)
		wantCode(t, what, err, "InvalidArgument")
	}
	release := n.machine.Block(wire.MethodCheckpoint)
	slow := proto.Clone(req).(*cri.CheckpointContainerRequest)
	slow.Timeout = 1
	_, err := n.CheckpointContainer(t.Context(), slow)
	release()
	wantCode(t, "timeout", err, "DeadlineExceeded")
	n.wantThawed(t)
	if entries, err := os.ReadDir(filepath.Dir(location)); err != nil || len(entries) > 0 {
		t.Errorf("at the location there is %v (err %v)", entries, err)
	}
	if _, err := n.CheckpointContainer(t.Context(), req); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// A restored container cannot differ from the original in anything on which its processes depend.
func TestCreateFromCheckpointRefused(t *testing.T) {
	n := newNode(t)
	config := forever("app")
	sandbox := n.run(t, pod("web"))
	id := n.begin(t, sandbox, config)
	archive := filepath.Join(t.TempDir(), "c.tar")
	if _, err := n.CheckpointContainer(t.Context(), &cri.CheckpointContainerRequest{ContainerId: id, Location: archive}); err != nil {
		t.Fatal(err)
	}
	before := slices.Sorted(slices.Values(n.left()))
	for what, change := range map[string]func(*cri.ContainerConfig){
		"user":       func(c *cri.ContainerConfig) { c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 7} },
		"privileges": func(c *cri.ContainerConfig) { c.Linux.SecurityContext.NoNewPrivs = true },
		"capability": func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"}}
		},
		"mount":      func(c *cri.ContainerConfig) { c.Mounts = []*cri.Mount{{HostPath: t.TempDir(), ContainerPath: "/data"}} },
		"terminal":   func(c *cri.ContainerConfig) { c.Tty = true },
		"root":       func(c *cri.ContainerConfig) { c.Linux.SecurityContext.ReadonlyRootfs = true },
		"no archive": func(c *cri.ContainerConfig) { c.Image.Image = "/etc/hostname" },
	} {
		bad := proto.Clone(config).(*cri.ContainerConfig)
		bad.Metadata.Attempt = 1
		bad.Image = &cri.ImageSpec{Image: archive}
		change(bad)
		_, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: bad})
		wantCode(t, what, err, "InvalidArgument")
	}
	if left := slices.Sorted(slices.Values(n.left())); !slices.Equal(left, before) {
		t.Errorf("left behind: %v, there was %v", left, before)
	}
}

// A pod's checkpoint is restored to a whole pod: its containers are created under new IDs, and the
// caller's files are no longer needed.
func TestCheckpointPod(t *testing.T) {
	n := newNode(t)
	config := pod("web")
	sandbox := n.run(t, config)
	one, two := n.begin(t, sandbox, forever("one")), n.begin(t, sandbox, forever("two"))
	output := t.TempDir()
	req := &cri.CheckpointPodRequest{PodSandboxId: sandbox, OutputPath: output, ContainerIds: []string{one, two}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.CheckpointPod(ctx, req); err != nil {
		t.Fatal(err)
	}
	n.wantThawed(t)
	config.Metadata.Uid = "another"
	restore := &cri.RestorePodRequest{CheckpointPath: output, Config: config, ContainerConfigs: []*cri.ContainerConfig{forever("two"), forever("one")}}
	resp, err := n.RestorePod(ctx, restore)
	if err != nil {
		t.Fatal(err)
	}
	again, err := n.RestorePod(ctx, restore)
	if err != nil || again.PodSandboxId != resp.PodSandboxId {
		t.Errorf("a repetition made %v (err %v)", again, err)
	}
	got := map[string]string{}
	for _, c := range resp.RestoredContainers {
		got[c.Name] = c.ContainerId
		if st := n.status(t, c.ContainerId); st.State != cri.ContainerState_CONTAINER_CREATED {
			t.Errorf("container %s is %v", c.Name, st.State)
		}
	}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"one", "two"}) || got["one"] == one {
		t.Errorf("restored were %v", got)
	}
	if err := os.RemoveAll(output); err != nil {
		t.Fatal(err)
	}
	for _, id := range got {
		if _, err := n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
	}
	if calls := n.machine.Calls(wire.MethodRestore); len(calls) != 2 {
		t.Errorf("restores: %v, want 2", calls)
	}
}

// CRI: "otherwise the runtime must fail the request without producing a
// checkpoint", and never returns with a frozen pod.
func TestCheckpointPodRefused(t *testing.T) {
	n := newNode(t)
	sandbox, other := n.run(t, pod("web")), n.run(t, pod("other"))
	one, created := n.begin(t, sandbox, forever("one")), n.create(t, sandbox, forever("created"))
	foreign := n.begin(t, other, forever("foreign"))
	output := t.TempDir()
	good := &cri.CheckpointPodRequest{PodSandboxId: sandbox, OutputPath: output, ContainerIds: []string{one}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		change func(*cri.CheckpointPodRequest)
		code   string
	}{
		"no sandbox":    {func(r *cri.CheckpointPodRequest) { r.PodSandboxId = "none" }, "NotFound"},
		"no containers": {func(r *cri.CheckpointPodRequest) { r.ContainerIds = nil }, "InvalidArgument"},
		"twice":         {func(r *cri.CheckpointPodRequest) { r.ContainerIds = []string{one, one} }, "InvalidArgument"},
		"not running":   {func(r *cri.CheckpointPodRequest) { r.ContainerIds = []string{one, created} }, "FailedPrecondition"},
		"another pod's": {func(r *cri.CheckpointPodRequest) { r.ContainerIds = []string{one, foreign} }, "InvalidArgument"},
		"unknown":       {func(r *cri.CheckpointPodRequest) { r.ContainerIds = []string{one, "none"} }, "NotFound"},
		"not empty":     {func(r *cri.CheckpointPodRequest) { r.OutputPath = full }, "InvalidArgument"},
		"not there":     {func(r *cri.CheckpointPodRequest) { r.OutputPath = full + "/none" }, "InvalidArgument"},
		"relative":      {func(r *cri.CheckpointPodRequest) { r.OutputPath = "x" }, "InvalidArgument"},
		"option":        {func(r *cri.CheckpointPodRequest) { r.Options = map[string]string{"a": "b"} }, "InvalidArgument"},
	} {
		bad := proto.Clone(good).(*cri.CheckpointPodRequest)
		c.change(bad)
		_, err := n.CheckpointPod(ctx, bad)
		wantCode(t, what, err, c.code)
	}
	_, err := n.CheckpointPod(t.Context(), good)
	wantCode(t, "no deadline", err, "InvalidArgument")
	n.machine.Fail(wire.MethodCheckpoint, errors.New("criu failed"))
	_, err = n.CheckpointPod(ctx, good)
	wantCode(t, "dump", err, "Unknown")
	n.machine.Fail(wire.MethodCheckpoint, nil)
	n.wantThawed(t)
	if entries, err := os.ReadDir(output); err != nil || len(entries) > 0 {
		t.Errorf("the output has %v (err %v)", entries, err)
	}
	if _, err := n.CheckpointPod(ctx, good); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// CRI: "resume all of them before returning on success, error, or deadline expiry",
// and "must remove partial artifacts before returning an error".
func TestCheckpointPodTooLate(t *testing.T) {
	n := newNode(t)
	sandbox := n.run(t, pod("web"))
	one, two := n.begin(t, sandbox, forever("one")), n.begin(t, sandbox, forever("two"))
	output := t.TempDir()
	req := &cri.CheckpointPodRequest{PodSandboxId: sandbox, OutputPath: output, ContainerIds: []string{one, two}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	short, giveUp := context.WithCancel(ctx)
	partial := func() string {
		names, err := filepath.Glob(filepath.Join(output, podPartial))
		if err != nil || len(names) != 1 {
			t.Fatalf("the output has %v (err %v), want what is being written", names, err)
		}
		return names[0]
	}
	release := n.machine.Block(wire.MethodCheckpoint)
	answer := make(chan error, 1)
	go func() {
		_, err := n.server.CheckpointPod(short, req) // called directly: a client would not wait for the answer
		answer <- err
	}()
	for len(n.machine.Calls(wire.MethodCheckpoint)) == 0 {
		time.Sleep(time.Millisecond)
	}
	if frozen := n.machine.Frozen(); len(frozen) != 2 {
		t.Errorf("while the first is dumped, %v are frozen, want both", frozen)
	}
	first := partial()
	giveUp()
	if err := <-answer; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	n.wantThawed(t)
	if entries, err := os.ReadDir(output); err != nil || len(entries) > 0 {
		t.Errorf("the output has %v (err %v)", entries, err)
	}
	// The remains of the first may be removed late, so the next one uses another directory.
	before := len(n.machine.Calls(wire.MethodCheckpoint))
	go func() {
		_, err := n.CheckpointPod(ctx, req)
		answer <- err
	}()
	for len(n.machine.Calls(wire.MethodCheckpoint)) == before {
		time.Sleep(time.Millisecond)
	}
	if second := partial(); second == first {
		t.Errorf("both are written to %s", first)
	}
	release()
	if err := <-answer; err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// The same for a failure at any step, even after the last write.
func TestCheckpointPodFailsAnywhere(t *testing.T) {
	t.Parallel() // it waits for the thaw
	n := newNode(t)
	sandbox := n.run(t, pod("web"))
	one := n.begin(t, sandbox, forever("one"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	failed := 0
	for step := 1; ; step++ {
		output := t.TempDir()
		n.machine.Fuse.Set(step, false)
		_, err := n.server.CheckpointPod(ctx, &cri.CheckpointPodRequest{PodSandboxId: sandbox, OutputPath: output, ContainerIds: []string{one}})
		n.machine.Fuse.Set(0, false)
		if err == nil {
			break
		}
		failed++
		if entries, rerr := os.ReadDir(output); rerr != nil || len(entries) > 0 {
			t.Errorf("step %d: after %v the output has %v (err %v)", step, err, entries, rerr)
		}
	}
	if failed < 4 { // the record, freezing, the dump, thawing
		t.Errorf("it failed %d times", failed)
	}
}

// A page that could not be written back is lost, and the kernel reports that once. If an
// unrelated sync received the report while the dump was written, the checkpoint fails.
func TestLostWritesFailThePodsCheckpoint(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	n := newNode(t)
	sandbox := n.run(t, pod("web"))
	one := n.begin(t, sandbox, forever("one"))
	mounted := t.TempDir()
	disk := testdisk.Mount(t, mounted)
	t.Cleanup(func() {
		if err := unix.Unmount(mounted, 0); err != nil {
			t.Error(err)
		}
	})
	output := filepath.Join(mounted, "output")
	if err := os.Mkdir(output, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req := &cri.CheckpointPodRequest{PodSandboxId: sandbox, OutputPath: output, ContainerIds: []string{one}}
	release := n.machine.Block(wire.MethodCheckpoint)
	answer := make(chan error, 1)
	go func() {
		_, err := n.server.CheckpointPod(ctx, req)
		answer <- err
	}()
	for len(n.machine.Calls(wire.MethodCheckpoint)) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := errors.Join(disk.Sync(), disk.Break()); err != nil {
		t.Error(err)
	}
	dirs, err := filepath.Glob(filepath.Join(output, podPartial, one))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%v are written to (err %v), want one", dirs, err)
	}
	if err := os.WriteFile(filepath.Join(dirs[0], "pages-1.img"), bytes.Repeat([]byte("page"), 4<<20), 0o600); err != nil {
		t.Error(err)
	}
	if err := disk.Lose(); err != nil {
		t.Error(err)
	}
	release()
	if err := <-answer; !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v, want one of the disk", err)
	}
	if entries, err := os.ReadDir(output); err != nil || len(entries) > 0 {
		t.Errorf("the output has %v (err %v)", entries, err)
	}
	if _, err := n.server.CheckpointPod(ctx, req); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// CRI: "On error, the runtime must remove any sandbox and containers created by the
// call before returning."
func TestRestorePodRefused(t *testing.T) {
	n := newNode(t)
	sandbox := n.run(t, pod("web"))
	one, two := n.begin(t, sandbox, forever("one")), n.begin(t, sandbox, forever("two"))
	output := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.CheckpointPod(ctx, &cri.CheckpointPodRequest{PodSandboxId: sandbox, OutputPath: output, ContainerIds: []string{one, two}}); err != nil {
		t.Fatal(err)
	}
	config := pod("web")
	config.Metadata.Uid = "another"
	good := &cri.RestorePodRequest{CheckpointPath: output, Config: config, ContainerConfigs: []*cri.ContainerConfig{forever("one"), forever("two")}}
	before := slices.Sorted(slices.Values(n.left()))
	nothing := t.TempDir()
	if err := os.Mkdir(filepath.Join(nothing, podDir), 0o700); err != nil {
		t.Fatal(err)
	}
	was, err := proto.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.Write(filepath.Join(nothing, podDir), podFile, podDump{Version: dumpVersion, Config: was}); err != nil {
		t.Fatal(err)
	}
	second := func(change func(*cri.ContainerConfig)) func(*cri.RestorePodRequest) {
		return func(r *cri.RestorePodRequest) { change(r.ContainerConfigs[1]) }
	}
	for what, change := range map[string]func(*cri.RestorePodRequest){
		"no checkpoint": func(r *cri.RestorePodRequest) { r.CheckpointPath = t.TempDir() },
		"relative":      func(r *cri.RestorePodRequest) { r.CheckpointPath = "x" },
		"handler":       func(r *cri.RestorePodRequest) { r.RuntimeHandler = "kata" },
		"option":        func(r *cri.RestorePodRequest) { r.Options = map[string]string{"a": "b"} },
		"none":          func(r *cri.RestorePodRequest) { r.ContainerConfigs = nil },
		"none in it":    func(r *cri.RestorePodRequest) { r.CheckpointPath, r.ContainerConfigs = nothing, nil },
		"too few":       func(r *cri.RestorePodRequest) { r.ContainerConfigs = r.ContainerConfigs[:1] },
		"twice":         second(func(c *cri.ContainerConfig) { c.Metadata.Name = "one" }),
		"another name":  second(func(c *cri.ContainerConfig) { c.Metadata.Name = "three" }),
		"no name":       second(func(c *cri.ContainerConfig) { c.Metadata.Name = "" }),
		"command":       second(func(c *cri.ContainerConfig) { c.Args = []string{"exit", "0"} }),
		"directory":     second(func(c *cri.ContainerConfig) { c.WorkingDir = "/tmp" }),
		"environment":   second(func(c *cri.ContainerConfig) { c.Envs = []*cri.KeyValue{{Key: "A", Value: []byte("b")}} }),
		"user":          second(func(c *cri.ContainerConfig) { c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 7} }),
		"host's network": func(r *cri.RestorePodRequest) {
			r.Config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
		},
	} {
		bad := proto.Clone(good).(*cri.RestorePodRequest)
		change(bad)
		_, err := n.RestorePod(ctx, bad)
		wantCode(t, what, err, "InvalidArgument")
	}
	_, err = n.RestorePod(t.Context(), good)
	wantCode(t, "no deadline", err, "InvalidArgument")
	n.store.failing("Apply", fault.Unavailable.Errorf("no space"))
	_, err = n.RestorePod(ctx, good)
	wantCode(t, "files", err, "Unavailable")
	n.store.failing("Apply", nil)
	if left := slices.Sorted(slices.Values(n.left())); !slices.Equal(left, before) {
		t.Errorf("left behind: %v, there was %v", left, before)
	}
	if _, err := n.RestorePod(ctx, good); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// The same when the deadline passes: the pod's network is blocked, so that there is a sandbox.
func TestRestorePodTooLate(t *testing.T) {
	n := newNode(t)
	sandbox := n.run(t, pod("web"))
	one := n.begin(t, sandbox, forever("one"))
	output := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.CheckpointPod(ctx, &cri.CheckpointPodRequest{PodSandboxId: sandbox, OutputPath: output, ContainerIds: []string{one}}); err != nil {
		t.Fatal(err)
	}
	config := pod("web")
	config.Metadata.Uid = "another"
	req := &cri.RestorePodRequest{CheckpointPath: output, Config: config, ContainerConfigs: []*cri.ContainerConfig{forever("one")}}
	before := slices.Sorted(slices.Values(n.left()))
	waiting, release := n.net.block()
	defer release()
	short, giveUp := context.WithCancel(ctx)
	answer := make(chan error, 1)
	go func() {
		_, err := n.server.RestorePod(short, req) // called directly: a client would not wait for the answer
		answer <- err
	}()
	<-waiting
	giveUp()
	if err := <-answer; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left := slices.Sorted(slices.Values(n.left())); !slices.Equal(left, before) {
		t.Errorf("left behind: %v, there was %v", left, before)
	}
	release()
	if _, err := n.RestorePod(ctx, req); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// A log that a pod has replaced by a link, or by a file that is not regular, is not read.
func TestCopyLogFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	secret, link, fifo, to := filepath.Join(dir, "secret"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo"), filepath.Join(dir, "to")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(secret, link), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{link, fifo, dir} {
		if err := copyLog(from, to); err == nil {
			t.Errorf("%s was copied", from)
		}
	}
	if _, err := os.Lstat(to); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a copy: %v", err)
	}
	if err := copyLog(secret, to); err != nil {
		t.Error(err)
	}
}
