package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/server/spec"
)

// engine is an OCI runtime that is run directly.
type engine struct {
	name string
	path string
	pid  int // of a process whose mount namespace it runs in; 0: our own
}

// parseEngine reads name=/path[,pid=N].
func parseEngine(s string) (engine, error) {
	first, rest, _ := strings.Cut(s, ",")
	var e engine
	e.name, e.path, _ = strings.Cut(first, "=")
	if e.name == "" || !filepath.IsAbs(e.path) {
		return e, fmt.Errorf("engine %q: want name=/path", s)
	}
	if rest != "" {
		value, ok := strings.CutPrefix(rest, "pid=")
		pid, err := strconv.Atoi(value)
		if !ok || err != nil || pid < 1 {
			return e, fmt.Errorf("engine %s: want pid=N, have %q", e.name, rest)
		}
		e.pid = pid
	}
	return e, nil
}

// run runs the engine and waits for it. Its containers get /dev/null as their streams.
func (e engine) run(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	return e.in(func() error {
		// A file instead of a pipe: a container that inherits a pipe would block the wait.
		said, err := os.CreateTemp("", "crisp-bench-engine-")
		if err != nil {
			return err
		}
		defer os.Remove(said.Name())
		defer said.Close()
		cmd := exec.CommandContext(ctx, e.path, args...)
		cmd.Stderr = said
		if err := cmd.Run(); err != nil {
			text, _ := os.ReadFile(said.Name())
			return fmt.Errorf("%s %s: %w: %s", e.name, args[0], err, strings.TrimSpace(string(text)))
		}
		return nil
	})
}

func (e engine) version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, e.path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", e.path, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return first, nil
}

// in calls f on a thread in the engine's mount namespace. The thread ends with f, and processes
// that f starts are in the namespace too.
func (e engine) in(f func() error) error {
	if e.pid == 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- func() error {
			fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", e.pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("mount namespace of process %d: %w", e.pid, err)
			}
			defer unix.Close(fd)
			if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(fd, unix.CLONE_NEWNS)); err != nil {
				return fmt.Errorf("mount namespace of process %d: %w", e.pid, err)
			}
			return f()
		}()
	}()
	return <-done
}

// engine measures each engine in turns, with a restricted container.
func (b *bench) engine(ctx context.Context) {
	bundle := filepath.Join(b.logs, "bundle")
	data, err := json.Marshal(b.engineSpec())
	if err = errors.Join(err, os.MkdirAll(bundle, 0o755), os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o644)); err != nil {
		b.fail("engine", "bundle", err)
		return
	}
	for i := range b.rounds {
		for _, j := range rand.Perm(len(b.engines)) {
			e := b.engines[j]
			if b.failed[e.name] || ctx.Err() != nil {
				continue
			}
			if err := b.engineRound(ctx, e, bundle, fmt.Sprintf("bench-%d-%d", os.Getpid(), i), i > 0); err != nil {
				b.fail(e.name, "engine", err)
			}
		}
	}
}

// engineRound takes one container from its creation to its removal; the first round is no sample.
func (b *bench) engineRound(ctx context.Context, e engine, bundle, id string, sample bool) (err error) {
	const group = "OCI runtime alone, restricted container"
	took := map[string]time.Duration{}
	call := func(name string, args ...string) error {
		return timing(func(name string, d time.Duration) { took[name] = d }).call(ctx, name, func(ctx context.Context) error { return e.run(ctx, args...) })
	}
	defer func() {
		err = errors.Join(err, call("delete", "delete", "--force", id))
		if err != nil || !sample {
			return
		}
		took["create + start"] = took["create"] + took["start"]
		for _, row := range []string{"create", "start", "create + start", "exec true", "exec true, CPU", "delete"} {
			b.report.add(group, row, "ms", e.name, milliseconds(took[row]))
		}
	}()
	if err := call("create", "create", "--bundle", bundle, id); err != nil {
		return err
	}
	if err := call("start", "start", id); err != nil {
		return err
	}
	took["exec true, CPU"], err = meter(func() error { return call("exec true", "exec", id, "true") })
	return err
}

// engineSpec returns the spec that a CRI runtime makes of a restricted container on the host's
// network, but with a directory as root file system.
func (b *bench) engineSpec() *specs.Spec {
	mount := func(at, kind string, options ...string) specs.Mount {
		return specs.Mount{Destination: at, Type: kind, Source: kind, Options: append([]string{"nosuid", "noexec"}, options...)}
	}
	adj := 1000
	return &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: b.rootfs},
		Process: &specs.Process{
			Args: payload, Cwd: "/", Env: []string{"PATH=/bin"}, NoNewPrivileges: true, OOMScoreAdj: &adj,
			User: specs.User{UID: nobody, GID: nobody}, Capabilities: &specs.LinuxCapabilities{},
		},
		Mounts: []specs.Mount{
			mount("/proc", "proc", "nodev"),
			mount("/dev", "tmpfs", "strictatime", "mode=755", "size=65536k"),
			mount("/dev/pts", "devpts", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
			mount("/dev/shm", "tmpfs", "nodev", "mode=1777", "size=65536k"),
			mount("/dev/mqueue", "mqueue", "nodev"),
			mount("/sys", "sysfs", "nodev", "ro"),
			mount("/sys/fs/cgroup", "cgroup", "nodev", "relatime", "ro"),
		},
		Linux: &specs.Linux{
			CgroupsPath: b.cgroupParent + "/engine",
			Namespaces:  []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.MountNamespace}},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}},
			Seccomp:     spec.DefaultSeccomp(nil, runtime.GOARCH),
			MaskedPaths: maskedPaths, ReadonlyPaths: readonlyPaths,
		},
	}
}
