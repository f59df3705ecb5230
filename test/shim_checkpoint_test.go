package test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/shimtest/behaviour"
	"github.com/crisp-cri/crisp/test/testenv"
)

// checkpoint writes an archive of a container.
func (d *dialect) checkpoint(id, archive string, seconds int64) error {
	_, err := d.runtime().CheckpointContainer(d.ctx(), &cri.CheckpointContainerRequest{ContainerId: id, Location: archive, Timeout: seconds})
	return err
}

// goesOn checks that a container runs and is not paused, and that nothing of a checkpoint is left.
func (d *dialect) goesOn(id string) {
	d.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		x, err := d.runtime().ExecSync(d.ctx(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"/testbin", "print", "alive"}})
		left, _ := filepath.Glob(filepath.Join(d.root, "[cf][hr]e*s", "*"))
		if err == nil && string(x.Stdout) == "alive\n" && len(left) == 0 && !d.stopped(id) {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("exec: %v (%v), left: %v, stopped: %t", x, err, left, d.stopped(id))
		}
	}
}

// stopped reports whether a container's process is one that SIGSTOP has stopped: the shim of tests
// pauses by it.
func (d *dialect) stopped(id string) bool {
	d.t.Helper()
	all, err := d.Requests()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, r := range all {
		if r.Call == "Create" && r.ID == id {
			pid := strings.TrimSpace(string(read(d.t, filepath.Join(d.bundleOf(id), "shimtest.pid"))))
			return strings.Contains(string(read(d.t, "/proc/"+pid+"/status")), "State:\tT")
		}
	}
	d.t.Fatalf("container %s was not created", id)
	return false
}

func (d *dialect) bundleOf(id string) string {
	return filepath.Join(d.state, "executor", "bundles", id)
}

// calls returns the calls that a shim has got for a container, of those named.
func (d *dialect) calls(id string, names ...string) (found []string) {
	d.t.Helper()
	all, err := d.Requests()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, r := range all {
		if r.ID == id && slices.Contains(names, r.Call) {
			found = append(found, r.Call)
		}
	}
	return found
}

// A shim that makes checkpoints is asked for them: of a paused container, which goes on. The container
// made from one is restored by a shim, in another pod, though both daemons are killed in between; and so
// are the containers of a pod.
func TestShimCheckpoint(t *testing.T) {
	testenv.Need(t, "shims")
	d := startDialect(t, behaviour.Behaviour{}, "")
	d.runPod("p", nil)
	config := testbinIn("app", "env", "RESTORED", "write", "/written", "text", "sleep", "for-ever")
	id, err := d.run("p", config)
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(d.work, "app.tar")
	if err := d.checkpoint(id, archive, 0); err != nil {
		t.Fatal(err)
	}
	d.goesOn(id)
	if got := d.calls(id, "Pause", "Checkpoint", "Resume"); !slices.Equal(got, []string{"Pause", "Checkpoint", "Resume"}) {
		t.Errorf("the shim was asked for %v", got)
	}
	d.runPod("q", nil)
	again := proto.Clone(config).(*cri.ContainerConfig)
	again.Image, again.LogPath = &cri.ImageSpec{Image: archive}, "app.log"
	made, err := d.runtime().CreateContainer(d.ctx(), &cri.CreateContainerRequest{PodSandboxId: d.ids["q"], SandboxConfig: d.sandboxes["q"], Config: again})
	if err != nil {
		t.Fatal(err)
	}
	d.kill()
	if _, err := d.runtime().StartContainer(d.ctx(), &cri.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		t.Fatal(err)
	}
	d.goesOn(made.ContainerId)
	x, err := d.runtime().ExecSync(d.ctx(), &cri.ExecSyncRequest{ContainerId: made.ContainerId, Cmd: []string{"/testbin", "cat", "/written"}})
	if err != nil || string(x.Stdout) != "text" || d.output("q", "app") != "yes\n" || d.output("p", "app") != "\n" {
		t.Errorf("it printed %q, the original %q; a file has %v (%v)", d.output("q", "app"), d.output("p", "app"), x, err)
	}

	beside, err := d.run("p", testbinIn("beside", "env", "RESTORED", "sleep", "for-ever"))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(d.work, "pod")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := d.runtime().CheckpointPod(d.ctx(), &cri.CheckpointPodRequest{PodSandboxId: d.ids["p"], OutputPath: dir, ContainerIds: []string{id, beside}}); err != nil {
		t.Fatal(err)
	}
	d.goesOn(beside)
	pod := proto.Clone(d.sandboxes["p"]).(*cri.PodSandboxConfig)
	pod.Metadata.Uid, pod.LogDirectory = "uid-r", filepath.Join(d.dir, "logs", "r")
	restored, err := d.runtime().RestorePod(d.ctx(), &cri.RestorePodRequest{
		CheckpointPath: dir, Config: pod, RuntimeHandler: "shim",
		ContainerConfigs: []*cri.ContainerConfig{config, testbinIn("beside", "env", "RESTORED", "sleep", "for-ever")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range restored.RestoredContainers {
		if _, err := d.runtime().StartContainer(d.ctx(), &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
			t.Fatal(err)
		}
		d.goesOn(c.ContainerId)
	}
	if len(restored.RestoredContainers) != 2 {
		t.Errorf("%v were restored", restored.RestoredContainers)
	}
}

// A shim that makes no checkpoints, fails in one or hangs: the error says whose fault it is, the
// container goes on, and the next checkpoint succeeds.
func TestShimCheckpointFails(t *testing.T) {
	testenv.Need(t, "shims")
	d := startDialect(t, behaviour.Behaviour{}, "")
	d.expects("shim|thawed|overdue|checkpoint")
	d.runPod("p", nil)
	id, err := d.run("p", testbinIn("app", "sleep", "for-ever"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what    string
		b       behaviour.Behaviour
		seconds int64
		code    codes.Code
		paused  bool // it may have been
	}{
		{"it has no checkpoints", behaviour.Behaviour{Fail: map[string]string{"Checkpoint": "Unimplemented: not here"}}, 0, codes.FailedPrecondition, false},
		{"it has no pauses", behaviour.Behaviour{Fail: map[string]string{"Pause": "Unimplemented: not here"}}, 0, codes.FailedPrecondition, true},
		{"a checkpoint fails", behaviour.Behaviour{Fail: map[string]string{"Checkpoint container": "Internal: it is broken"}}, 0, codes.FailedPrecondition, true},
		{"a checkpoint hangs", behaviour.Behaviour{Hang: []string{"Checkpoint container"}}, 1, codes.DeadlineExceeded, true},
		{"a pause hangs", behaviour.Behaviour{Hang: []string{"Pause"}}, 1, codes.DeadlineExceeded, true},
		{"it does not let go on", behaviour.Behaviour{Fail: map[string]string{"Resume": "Internal: it is broken"}}, 0, codes.Unknown, true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			d.t = t
			before := len(d.calls(id, "Pause"))
			tt.b.Record = d.Record
			if err := tt.b.Save(d.path); err != nil {
				t.Fatal(err)
			}
			archive := filepath.Join(t.TempDir(), "app.tar")
			err := d.checkpoint(id, archive, tt.seconds)
			if status.Code(err) != tt.code {
				t.Errorf("the error is %v, want %v", err, tt.code)
			}
			if text := err.Error(); tt.code == codes.FailedPrecondition && (!strings.Contains(text, `handler "shim"`) || !strings.Contains(text, d.path)) {
				t.Errorf("the error does not name handler and shim: %v", err)
			}
			if paused := len(d.calls(id, "Pause")) > before; paused != tt.paused {
				t.Errorf("it was paused: %t", paused)
			}
			if _, err := os.Stat(archive); err == nil {
				t.Error("there is an archive")
			}
			if err := d.Save(d.path); err != nil {
				t.Fatal(err)
			}
			d.goesOn(id)
			if err := d.checkpoint(id, archive, 0); err != nil {
				t.Errorf("the next one: %v", err)
			}
		})
	}
}

// Both daemons are killed while a shim makes a checkpoint: the container goes on, and nothing is left.
// One that does not go on can be stopped, and one that a shim cannot restore harms no other.
func TestShimCheckpointCutShort(t *testing.T) {
	testenv.Need(t, "shims")
	d := startDialect(t, behaviour.Behaviour{}, "")
	d.expects("shim|thawed|checkpoint")
	d.runPod("p", nil)
	config := testbinIn("app", "sleep", "for-ever")
	id, err := d.run("p", config)
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(d.work, "app.tar")
	save := func(b behaviour.Behaviour) {
		t.Helper()
		b.Record = d.Record
		if err := b.Save(d.path); err != nil {
			t.Fatal(err)
		}
	}
	save(behaviour.Behaviour{Hang: []string{"Checkpoint container"}})
	ended := make(chan error, 1)
	go func() { ended <- d.checkpoint(id, archive, 0) }()
	for len(d.calls(id, "Checkpoint")) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	if !d.stopped(id) {
		t.Error("it is not paused")
	}
	d.kill()
	if err := <-ended; err == nil {
		t.Error("the checkpoint was made")
	}
	d.goesOn(id)
	save(behaviour.Behaviour{})
	if err := d.checkpoint(id, archive, 0); err != nil {
		t.Fatal(err)
	}

	save(behaviour.Behaviour{Fail: map[string]string{"Start container": "Internal: no such image"}})
	again := proto.Clone(config).(*cri.ContainerConfig)
	again.Metadata.Name, again.Image = "again", &cri.ImageSpec{Image: archive}
	bad, err := d.run("p", again)
	if err == nil || !strings.Contains(err.Error(), "no such image") {
		t.Errorf("the restore ended with %v", err)
	}
	if s := d.exits(bad); s.ExitCode != 128 || s.Reason != "StartError" {
		t.Errorf("it is %v", s)
	}
	// A shim without checkpoints would begin the program anew.
	save(behaviour.Behaviour{Fail: map[string]string{"Checkpoint": "Unimplemented: no checkpoints"}})
	again.Metadata.Attempt++
	if _, err = d.run("p", again); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no checkpoints") {
		t.Errorf("a shim without checkpoints: %v", err)
	}
	save(behaviour.Behaviour{})
	d.goesOn(id)
	again.Metadata.Attempt++
	if bad, err = d.run("p", again); err != nil {
		t.Fatal(err)
	}
	d.goesOn(bad)

	save(behaviour.Behaviour{Hang: []string{"Resume"}})
	if err := d.checkpoint(id, archive, 1); err == nil {
		t.Error("it went on, though the shim hangs")
	}
	if _, err := d.runtime().StopContainer(d.ctx(), &cri.StopContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
	if s := d.exits(id); s.ExitCode != 137 {
		t.Errorf("it is %v", s)
	}
	save(behaviour.Behaviour{})
	d.goesOn(bad)
}
