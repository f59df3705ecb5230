package server

import (
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
)

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

// extraCapability returns a capability in a set of was that is missing from the same set of is;
// "" if there is none.
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

// readOnly returns the destinations of read-only mounts.
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
