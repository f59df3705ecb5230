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

// noMore refuses a checkpoint of a container that had more rights than the request grants. It
// may have had fewer: other runtimes have other defaults.
func (r *restoration) noMore(built *specs.Spec) error {
	is, was := built.Process, r.spec.Process
	if is.User.UID != was.User.UID || is.User.GID != was.User.GID {
		return fault.Invalid.Errorf("the user of the container is %d:%d, but it was checkpointed with %d:%d", is.User.UID, is.User.GID, was.User.UID, was.User.GID)
	}
	for _, gid := range was.User.AdditionalGids {
		if gid != is.User.GID && !slices.Contains(is.User.AdditionalGids, gid) {
			return fault.Invalid.Errorf("the container was checkpointed in group %d, which the request does not give it", gid)
		}
	}
	if extra := extraCapability(is.Capabilities, was.Capabilities); extra != "" {
		return fault.Invalid.Errorf("the container was checkpointed with the capability %s, which the request does not give it", extra)
	}
	for _, d := range devicePaths(&r.spec) {
		if !slices.Contains(devicePaths(built), d) {
			return fault.Invalid.Errorf("the container was checkpointed with the device %s, which the request does not give it", d)
		}
	}
	return r.noLessConfined(built)
}

// extraCapability returns a capability in a set of was that is missing from the same set of is; ""
// if none is.
func extraCapability(is, was *specs.LinuxCapabilities) string {
	if was == nil {
		return ""
	}
	if is == nil {
		is = new(specs.LinuxCapabilities)
	}
	for _, set := range [][2][]string{
		{is.Bounding, was.Bounding}, {is.Effective, was.Effective}, {is.Permitted, was.Permitted},
		{is.Inheritable, was.Inheritable}, {is.Ambient, was.Ambient},
	} {
		for _, c := range set[1] {
			if !slices.Contains(set[0], c) {
				return c
			}
		}
	}
	return ""
}

// noLessConfined refuses a checkpoint that lacks a confinement that the request asks for.
// Filters and profiles of other runtimes differ in name and content, so only their presence can
// be required.
func (r *restoration) noLessConfined(built *specs.Spec) error {
	is, was := built.Process, r.spec.Process
	for _, c := range []struct {
		what    string
		is, was bool
	}{
		{"no_new_privs", is.NoNewPrivileges, was.NoNewPrivileges},
		{"an AppArmor profile", confines(is.ApparmorProfile), confines(was.ApparmorProfile)},
		{"a seccomp profile", built.Linux.Seccomp != nil, r.spec.Linux.Seccomp != nil},
		{"a seccomp profile that allows only what it lists", filters(built.Linux.Seccomp), filters(r.spec.Linux.Seccomp)},
		{"a read-only root file system", built.Root.Readonly, r.spec.Root.Readonly},
	} {
		if c.is && !c.was {
			return fault.Invalid.Errorf("the container was checkpointed without %s, and the request asks for it", c.what)
		}
	}
	for _, c := range []struct {
		what    string
		is, was []string
	}{
		{"the masked path", built.Linux.MaskedPaths, r.spec.Linux.MaskedPaths},
		{"the read-only path", built.Linux.ReadonlyPaths, r.spec.Linux.ReadonlyPaths},
		{"a read-only mount at", readOnly(built), readOnly(&r.spec)},
		{"a namespace of its own or its pod's of kind", kinds(built), kinds(&r.spec)},
	} {
		for _, is := range c.is {
			if !slices.Contains(c.was, is) {
				return fault.Invalid.Errorf("the container was checkpointed without %s %s, and the request asks for it", c.what, is)
			}
		}
	}
	return nil
}

func confines(profile string) bool { return profile != "" && profile != "unconfined" }

// filters reports whether a seccomp profile allows only what it lists.
func filters(p *specs.LinuxSeccomp) bool { return p != nil && p.DefaultAction != specs.ActAllow }

func readOnly(spec *specs.Spec) []string {
	var list []string
	for _, m := range spec.Mounts {
		dest := filepath.Clean("/" + m.Destination)
		if dest != standIn && (slices.Contains(m.Options, "ro") || slices.Contains(m.Options, "rro")) {
			list = append(list, dest)
		}
	}
	return list
}

// kinds returns the types of the namespaces that are not the host's.
func kinds(spec *specs.Spec) []string {
	var list []string
	for _, n := range spec.Linux.Namespaces {
		list = append(list, string(n.Type))
	}
	return list
}
