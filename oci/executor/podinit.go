package executor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux/label"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// podInit serves wire.PodInitRequest. The pod's init is a container like any other, with as
// little as possible in it: no capabilities, no privileged user, no file except itself. The
// containers of the pod can see its root through /proc/1/root.
func (x *Executor) podInit(ctx context.Context, from *wire.Conn, req wire.PodInitRequest) (*wire.RunReply, []*os.File, error) {
	x.warmer.warm()
	root := filepath.Join(x.opts.State, "podinit")
	if err := podRoot(root, req.Path, req.FileLabel); err != nil {
		return nil, nil, fmt.Errorf("root of a pod's init: %w", err)
	}
	user := cmp.Or(req.User, nobody)
	score := -998 // the last of the pod to be OOM-killed
	spec := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: root, Readonly: true},
		Process: &specs.Process{
			Args:            []string{"/init"},
			Cwd:             "/",
			User:            specs.User{UID: user, GID: user},
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			SelinuxLabel:    req.Label,
			OOMScoreAdj:     &score,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			// A bind mount of /dev keeps libcontainer from creating devices.
			{Destination: "/dev", Type: "bind", Source: filepath.Join(root, "dev"), Options: []string{"bind", "ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: req.Cgroup,
			Namespaces:  []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}},
		},
	}
	if req.MountLabel != "" {
		// A search for the pod's mount label in /proc/1/mountinfo, as in critest, finds it here:
		// a bind mount cannot have one.
		spec.Linux.MountLabel = req.MountLabel
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "nodev", "ro", "mode=555", "size=4k"},
		})
	}
	kinds := map[string]specs.LinuxNamespaceType{
		"net": specs.NetworkNamespace, "uts": specs.UTSNamespace, "ipc": specs.IPCNamespace, "user": specs.UserNamespace,
	}
	for kind, path := range req.Namespaces {
		t, ok := kinds[kind]
		if !ok {
			return nil, nil, fault.Invalid.Errorf("pod init cannot join a %q namespace", kind)
		}
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: t, Path: path})
	}
	return x.create(ctx, from, settings{wire.Settings{ID: req.ID, ExitPath: req.ExitPath}, true}, spec, wire.RunRequest{SystemdCgroup: req.SystemdCgroup}, x.builtins.execute)
}

const nobody = 65534

// podRoot creates root, the root directory of every pod's init, with a copy of the program at
// path in it, and replaces the copy if the program has changed. Both get the SELinux label
// fileLabel, unless it is "".
func podRoot(root, path, fileLabel string) error {
	want, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	init := filepath.Join(root, "init")
	if have, err := os.ReadFile(init); err == nil && bytes.Equal(have, want) {
		return label.SetFileLabel(init, fileLabel)
	}
	for _, dir := range []string{root, filepath.Join(root, "proc"), filepath.Join(root, "dev")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// Renamed into place, because the old one may be running.
	f, err := os.CreateTemp(root, ".init.*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(want)
	if err == nil {
		err = f.Chmod(0o755)
	}
	if err == nil {
		err = errors.Join(label.SetFileLabel(root, fileLabel), label.SetFileLabel(f.Name(), fileLabel))
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), init)
}
