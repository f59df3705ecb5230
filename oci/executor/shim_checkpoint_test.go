package executor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/shimtest/behaviour"
	"github.com/crisp-cri/crisp/test/testenv"
)

// runcFake starts a node with a shim of tests that counts as runc's, where a program criu says that it
// works.
func runcFake(t *testing.T) (n *node, with option, behave func(behaviour.Behaviour)) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "criu"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	n, fake, behave := fakeShim(t)
	return n, func(req *wire.RunRequest, spec *specs.Spec) {
		fake(req, spec)
		req.Shim.OptionsType = "containerd.runc.v1.Options"
		spec.Annotations = map[string]string{"org.criu.config": "/of/the/pod", "io.kubernetes.cri.container-type": "container"}
	}, behave
}

// checkpoint freezes the container and has its checkpoint written, and thaws it.
func (b *box) checkpoint(dir string) error {
	b.t.Helper()
	b.call(wire.MethodFreeze, wire.FreezeRequest{IDs: []string{b.id}}, nil)
	_, err := b.client.Call(b.t.Context(), wire.MethodCheckpoint, wire.CheckpointRequest{ID: b.id, Dir: dir, Frozen: true}, nil)
	b.call(wire.MethodThaw, wire.ThawRequest{IDs: []string{b.id}, Dir: dir}, nil)
	return err
}

// runc's shim has CRIU work in our directory, with our settings whatever a pod's annotations say; what
// CRIU has complained of is in the error.
func TestShimCheckpointByCRIU(t *testing.T) {
	testenv.Need(t, "shims")
	n, with, behave := runcFake(t)
	b := n.run([]string{"print", "up", "sleep", "for-ever"}, with)
	b.says("up")
	spec, err := os.ReadFile(filepath.Join(b.bundle(), "config.json"))
	if err != nil || !strings.Contains(string(spec), `"org.criu.config":"`+n.dir+`/criu.conf"`) || strings.Contains(string(spec), "/of/the/pod") {
		t.Errorf("the shim was given %s (%v)", spec, err)
	}
	dir := t.TempDir()
	if err := b.checkpoint(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir + "/dump.log", dir + "/checkpoint/shimtest", n.dir + "/criu.conf"} {
		if !testenv.Exists(name) {
			t.Errorf("there is no %s", name)
		}
	}
	r := n.request([]string{"exit", "9"}, with)
	if restore := (wire.RestoreRequest{RunRequest: r.req, Dir: dir}); cgroups.IsCgroup2UnifiedMode() { // the shim of tests uses none
		if err := n.fails(fault.WrongState, wire.MethodRestore, restore); !strings.Contains(err.Error(), "outside of its cgroup") {
			t.Errorf("a restore outside of the cgroup: %v", err)
		}
	} else {
		r.fds = n.call(wire.MethodRestore, restore, &r.reply)
		defer r.drop()
		r.says("up")
	}
	if !testenv.Exists(dir + "/restore.log") {
		t.Error("CRIU did not restore in the checkpoint's directory")
	}

	bad := t.TempDir()
	if err := os.WriteFile(filepath.Join(bad, "dump.log"), []byte("(00.1) Error (criu/x.c:1): no room: No space left on device\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	behave(behaviour.Behaviour{Fail: map[string]string{"Checkpoint container": "Unknown: criu failed"}})
	if err := b.checkpoint(bad); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "criu/x.c:1") {
		t.Errorf("without room: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "restore.log"), []byte("(00.1) Error (criu/y.c:1): PID is taken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	behave(behaviour.Behaviour{Fail: map[string]string{"Start container": "Unknown: criu failed"}})
	again := n.request([]string{"exit", "9"}, with)
	if err := n.fails(fault.Internal, wire.MethodRestore, wire.RestoreRequest{RunRequest: again.req, Dir: dir}); !strings.Contains(err.Error(), "criu/y.c:1") {
		t.Errorf("a restore that fails: %v", err)
	}
	behave(behaviour.Behaviour{})
	if code := b.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("exec afterwards: %d", code)
	}

	odd := n.run([]string{"print", "up", "sleep", "for-ever"}, with, func(_ *wire.RunRequest, s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x]:/etc", Type: "bind", Source: t.TempDir(), Options: []string{"rbind"}})
	})
	if err := odd.checkpoint(t.TempDir()); !errors.Is(err, fault.WrongState) || !strings.Contains(err.Error(), "CRIU cannot record") {
		t.Errorf("a place that is not what it seems: %v", err)
	}
}

// A container that is killed while its checkpoint is being made ends, and its shim stays.
func TestShimCheckpointKilled(t *testing.T) {
	testenv.Need(t, "shims")
	n, with, behave := runcFake(t)
	first := n.run([]string{"print", "up", "sleep", "for-ever"}, with)
	first.says("up")
	b := n.run([]string{"print", "up", "sleep", "for-ever"}, with, func(req *wire.RunRequest, _ *specs.Spec) { req.Shim.Sandbox = first.id })
	b.says("up")
	behave(behaviour.Behaviour{Hang: []string{"Checkpoint container"}})
	dir := t.TempDir()
	b.call(wire.MethodFreeze, wire.FreezeRequest{IDs: []string{b.id}}, nil)
	ended := make(chan error, 1)
	go func() {
		_, err := n.client.Call(t.Context(), wire.MethodCheckpoint, wire.CheckpointRequest{ID: b.id, Dir: dir, Frozen: true}, nil)
		ended <- err
	}()
	eventually(t, func() bool { return testenv.Exists(dir + "/checkpoint") }, "the checkpoint does not begin")
	n.fails(fault.WrongState, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("exit", "0")})
	b.signal(unix.SIGKILL, true)
	if err := <-ended; !errors.Is(err, fault.Unavailable) {
		t.Errorf("the checkpoint ended with %v", err)
	}
	b.call(wire.MethodThaw, wire.ThawRequest{IDs: []string{b.id}, Dir: dir}, nil)
	if e := b.wait(); e.Code != 137 || e.Reason != wire.ReasonError {
		t.Errorf("it ended with %+v", e)
	}
	b.delete()
	if code := first.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("exec beside it: %d", code)
	}
}
