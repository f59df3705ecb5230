package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// check refuses a request that a shim of the dialect would refuse, or could do nothing with.
func (s *service) check(dialect, kind string, in proto.Message) error {
	checks := map[string]func(string, proto.Message) error{"kata": s.checkKata, "runwasi": s.checkRunwasi}
	if check := checks[dialect]; check != nil {
		return check(kind, in)
	}
	return nil
}

// checkKata has what Kata's shim (src/runtime/pkg/containerd-shim-v2 and pkg/oci) demands.
//
// The first container is the sandbox, a virtual machine; the others are in it and name it. A root file
// system is one mount, which may be a block device, or the directory in config.json that is mounted
// already. The VM's network is made from what is in the network namespace when it starts; its
// size from the annotations about the pod's resources. Options are the path of the configuration.
func (s *service) checkKata(kind string, in proto.Message) error {
	if create, ok := in.(*sandboxapi.CreateSandboxRequest); ok {
		return checkKataMachine(create)
	}
	create, ok := in.(*task.CreateTaskRequest)
	if !ok {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return status.Errorf(codes.InvalidArgument, "kata: "+format, args...)
	}
	spec, err := readSpec(create.Bundle)
	if err != nil {
		return refuse("config.json: %v", err)
	}
	sandbox := s.sandbox()
	switch {
	case kind == "sandbox" && sandbox != "":
		return refuse("a second sandbox, after %s", sandbox)
	case kind == "container" && sandbox == "":
		return refuse("container %s comes before its sandbox", create.ID)
	case kind == "container" && spec.Annotations["io.kubernetes.cri.sandbox-id"] != sandbox:
		return refuse("container %s is of sandbox %q, and this is %s", create.ID, spec.Annotations["io.kubernetes.cri.sandbox-id"], sandbox)
	case kind != "sandbox" && kind != "container":
		return refuse("container %s has type %q", create.ID, kind)
	}
	switch files, err := os.ReadDir(spec.root(create.Bundle)); {
	case len(create.Rootfs) > 1:
		return refuse("%d mounts of the root file system", len(create.Rootfs))
	case len(create.Rootfs) == 0 && (err != nil || len(files) == 0):
		return refuse("neither is there a mount for the root file system, nor is anything in %s: %v", spec.Root.Path, err)
	}
	if url := create.Options.GetTypeUrl(); create.Options != nil && url != "runtimeoptions.v1.Options" && url != "containerd.runc.v1.Options" {
		return refuse("options of type %q", url)
	}
	if kind == "sandbox" {
		return s.checkKataSandbox(spec, refuse)
	}
	for _, m := range spec.Mounts {
		if _, err := os.Stat(m.Source); m.isBind() && err != nil {
			return refuse("a mount that cannot be shared with the virtual machine: %v", err)
		}
	}
	return nil
}

func (s *service) checkKataSandbox(spec spec, refuse func(string, ...any) error) error {
	if _, err := os.Stat(spec.network()); err != nil {
		return refuse("network namespace: %v", err)
	}
	for name, value := range spec.Annotations {
		if !strings.HasPrefix(name, "io.kubernetes.cri.sandbox-cpu-") && name != "io.kubernetes.cri.sandbox-memory" {
			continue
		}
		if _, err := strconv.ParseInt(value, 10, 64); err != nil {
			return refuse("annotation %s: %v", name, err)
		}
	}
	for _, name := range []string{"io.kubernetes.cri.sandbox-id", "io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.sandbox-namespace"} {
		if spec.Annotations[name] == "" {
			return refuse("there is no annotation %s", name)
		}
	}
	return nil
}

// checkKataMachine has what Kata's shim in Rust (src/runtime-rs/crates/runtimes) demands of a sandbox by
// the Sandbox API: CRI's configuration of the pod by its name, from which it takes the annotations.
func checkKataMachine(in *sandboxapi.CreateSandboxRequest) error {
	refuse := func(format string, args ...any) error {
		return status.Errorf(codes.Unknown, "kata: "+format, args...)
	}
	config := &cri.PodSandboxConfig{}
	if url := in.GetOptions().GetTypeUrl(); url != "runtime.v1.PodSandboxConfig" {
		return refuse("unsupported type url: %s", url)
	}
	if err := proto.Unmarshal(in.Options.Value, config); err != nil {
		return refuse("%v", err)
	}
	if _, err := os.Stat(in.NetnsPath); err != nil {
		return refuse("network namespace: %v", err)
	}
	if info, err := os.Stat(in.BundlePath); err != nil || !info.IsDir() {
		return refuse("bundle: %v", err)
	}
	return nil
}

// sandbox returns the ID of the sandbox that the shim has; "" = none.
func (s *service) sandbox() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machine != nil {
		return s.machine.id
	}
	for _, c := range s.containers {
		if c.spec.kind() == "sandbox" {
			return c.id
		}
	}
	return ""
}

// checkRunwasi has what the shims of runwasi (crates/containerd-shim-wasm) can do: the sandbox's process
// is not run, and a container's is a module in its root file system, "PATH" or "PATH#FUNCTION". There are
// no terminals, no further processes and no checkpoints.
func (s *service) checkRunwasi(kind string, in proto.Message) error {
	unsupported := func(what string) error { return status.Error(codes.Unimplemented, what+" is not supported") }
	switch in := in.(type) {
	case *task.CreateTaskRequest:
		switch {
		case in.Terminal:
			return status.Error(codes.InvalidArgument, "terminal is not supported")
		case in.Checkpoint != "":
			return unsupported("checkpoint")
		}
		spec, err := readSpec(in.Bundle)
		if err != nil || len(spec.Process.Args) == 0 {
			return status.Errorf(codes.InvalidArgument, "could not load runtime spec: %v", err)
		}
		if kind == "sandbox" || len(in.Rootfs) > 0 {
			return nil
		}
		if _, err := os.Stat(filepath.Join(spec.root(in.Bundle), module(spec.Process))); err != nil {
			return status.Errorf(codes.InvalidArgument, "module not found: %v", err)
		}
		return nil
	case *task.ExecProcessRequest:
		return unsupported("exec")
	case *task.PauseRequest, *task.ResumeRequest, *task.CheckpointTaskRequest, *task.UpdateTaskRequest, *task.PidsRequest, *task.ResizePtyRequest, *task.CloseIORequest:
		return unsupported(fmt.Sprintf("%T", in))
	}
	return nil
}

// module is the path of a process's module.
func module(p process) string {
	path, _, _ := strings.Cut(p.Args[0], "#")
	return path
}

// runModule does what a module of tests says: its custom section "script" has lines for stdout, "exit N"
// and "sleep DURATION". The arguments follow its name in the first line.
func runModule(p process) {
	p.Args = p.Args[1:]
	data, err := os.ReadFile(filepath.Join("/", module(p)))
	if err == nil && (len(data) < 8 || string(data[:8]) != "\x00asm\x01\x00\x00\x00") {
		err = fmt.Errorf("%s is no module", module(p))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(137)
	}
	fmt.Println("module", strings.Join(p.Args, " "))
	for line := range strings.Lines(script(data[8:])) {
		line = strings.TrimSpace(line)
		verb, rest, _ := strings.Cut(line, " ")
		switch verb {
		case "exit":
			code, _ := strconv.Atoi(rest)
			os.Exit(code)
		case "sleep":
			d, _ := time.ParseDuration(rest)
			time.Sleep(d)
		case "env":
			i := slices.IndexFunc(p.Env, func(v string) bool { return strings.HasPrefix(v, rest+"=") })
			if i >= 0 {
				fmt.Println(p.Env[i])
			}
		default:
			fmt.Println(line)
		}
	}
	os.Exit(0)
}

// script returns the content of the custom section of that name, whose lengths are LEB128 numbers.
func script(sections []byte) string {
	for len(sections) > 1 {
		id := sections[0]
		size, n := binary.Uvarint(sections[1:])
		if n <= 0 || size > uint64(len(sections)-1-n) {
			return ""
		}
		content := sections[1+n : 1+n+int(size)]
		sections = sections[1+n+int(size):]
		length, k := binary.Uvarint(content)
		if id == 0 && k > 0 && length <= uint64(len(content)-k) && string(content[k:k+int(length)]) == "script" {
			return string(content[k+int(length):])
		}
	}
	return ""
}
