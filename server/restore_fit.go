package server

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
)

// standIn is where CRI-O mounts a file of its own into every container. CRIU requires a mount
// there; an empty file will do.
const standIn = "/run/.containerenv"

// complete adds the mount that the original got from its runtime and that no request can name.
// Its file is among those that the sandbox provides to its containers.
func (r *restoration) complete(built *specs.Spec, sb *oci.Sandbox) error {
	if !destinations(&r.spec)[standIn] || destinations(built)[standIn] {
		return nil
	}
	file := filepath.Join(sb.Dir(), "containerenv")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		return err
	}
	built.Mounts = append(built.Mounts, specs.Mount{
		Destination: standIn, Type: "bind", Source: file,
		Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev", "noexec"},
	})
	return nil
}

// fit compares built with the original, and refuses differences that a restore cannot bridge. It
// also puts the restored process into built: an exec takes its environment from there.
func (r *restoration) fit(built *specs.Spec) error {
	have, want := destinations(&r.spec), destinations(built)
	for dest := range have {
		if !want[dest] {
			return fault.Invalid.Errorf("the container was checkpointed with a mount at %s, and the request has none there", dest)
		}
	}
	for dest := range want {
		if !have[dest] && r.mine {
			return fault.Invalid.Errorf("the container was checkpointed without a mount at %s, and a restored one cannot get it", dest)
		}
	}
	if err := r.noMore(built); err != nil {
		return err
	}
	is, was := built.Process, r.spec.Process
	checks := []check{{"terminal", is.Terminal, was.Terminal}}
	if r.mine {
		checks = append(checks,
			check{"user", is.User, was.User},
			check{"capabilities", is.Capabilities, was.Capabilities},
			check{"no_new_privs", is.NoNewPrivileges, was.NoNewPrivileges},
			check{"AppArmor profile", is.ApparmorProfile, was.ApparmorProfile},
			check{"seccomp profile", built.Linux.Seccomp, r.spec.Linux.Seccomp},
			check{"masked paths", built.Linux.MaskedPaths, r.spec.Linux.MaskedPaths},
			check{"read-only paths", built.Linux.ReadonlyPaths, r.spec.Linux.ReadonlyPaths},
			check{"read-only root file system", built.Root.Readonly, r.spec.Root.Readonly},
			check{"devices", devicePaths(built), devicePaths(&r.spec)},
			check{"namespaces", namespaceKinds(built), namespaceKinds(&r.spec)},
		)
	}
	if r.from.dir != "" {
		checks = append(checks,
			check{"command", is.Args, was.Args},
			check{"working directory", is.Cwd, was.Cwd},
			check{"environment", slices.Sorted(slices.Values(is.Env)), slices.Sorted(slices.Values(was.Env))},
		)
	}
	for _, c := range checks {
		if err := c.compare(); err != nil {
			return err
		}
	}
	is.Args, is.Env, is.Cwd, is.User = was.Args, was.Env, was.Cwd, was.User
	return nil
}

// A check compares one property, in its JSON form.
type check struct {
	what    string
	is, was any
}

func (c check) compare() error {
	is, err := json.Marshal(c.is)
	if err != nil {
		return err
	}
	was, err := json.Marshal(c.was)
	if err != nil {
		return err
	}
	if bytes.Equal(is, was) {
		return nil
	}
	const most = 200 // a seccomp profile would fill pages
	if len(is) > most || len(was) > most {
		return fault.Invalid.Errorf("the %s of the container is not what it was checkpointed with", c.what)
	}
	return fault.Invalid.Errorf("the %s of the container is %s, but it was checkpointed with %s", c.what, is, was)
}

func devicePaths(spec *specs.Spec) []string {
	var paths []string
	for _, d := range spec.Linux.Devices {
		paths = append(paths, d.Path)
	}
	return slices.Sorted(slices.Values(paths))
}

// namespaceKinds returns the namespace types; a + marks those that are joined.
func namespaceKinds(spec *specs.Spec) []string {
	var list []string
	for _, n := range spec.Linux.Namespaces {
		kind := string(n.Type)
		if n.Path != "" {
			kind += "+"
		}
		list = append(list, kind)
	}
	return slices.Sorted(slices.Values(list))
}
