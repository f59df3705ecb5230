package spec

import (
	"encoding/json"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SeccompOf returns which seccomp profile sc requests, also by the deprecated string, and the
// file of a Localhost one. Without a profile, or with privilege, it is Unconfined. CRI:
// "Default: "", which is identical with unconfined."
func SeccompOf(sc *cri.LinuxContainerSecurityContext) (kind cri.SecurityProfile_ProfileType, file string, err error) {
	kind = cri.SecurityProfile_Unconfined
	//lint:ignore SA1019 CRI keeps the string for older clients
	switch p, old := sc.GetSeccomp(), sc.GetSeccompProfilePath(); {
	case sc.GetPrivileged():
		return kind, "", nil
	case p != nil:
		kind, file = p.ProfileType, p.LocalhostRef
	case old == "" || old == "unconfined":
	case old == "runtime/default" || old == "docker/default":
		kind = cri.SecurityProfile_RuntimeDefault
	case strings.HasPrefix(old, "localhost/"):
		kind, file = cri.SecurityProfile_Localhost, strings.TrimPrefix(old, "localhost/")
	default:
		return 0, "", fault.Invalid.Errorf("seccomp profile %q is neither \"runtime/default\", \"unconfined\" nor \"localhost/…\"", old)
	}
	switch kind {
	case cri.SecurityProfile_Unconfined, cri.SecurityProfile_RuntimeDefault:
		return kind, "", nil
	case cri.SecurityProfile_Localhost:
		if !filepath.IsAbs(file) {
			return 0, "", fault.Invalid.Errorf("seccomp profile %q is not an absolute path", file)
		}
		return kind, file, nil
	}
	return 0, "", fault.Invalid.Errorf("seccomp profile type %d is not known", kind)
}

// seccomp returns the filter of a container with the capabilities caps.
func seccomp(in Input, caps []string) (*specs.LinuxSeccomp, error) {
	kind, file, err := SeccompOf(in.Container.GetLinux().GetSecurityContext())
	if err != nil {
		return nil, err
	}
	switch kind {
	case cri.SecurityProfile_Localhost:
		if !in.Host.Seccomp {
			return nil, fault.Invalid.Errorf("seccomp profile %s: this kernel has no seccomp filters", file)
		}
		profile, err := ParseSeccomp(in.SeccompProfile, caps, runtime.GOARCH)
		if err != nil {
			return nil, fault.Invalid.Errorf("seccomp profile %s: %w", file, err)
		}
		return profile, nil
	case cri.SecurityProfile_RuntimeDefault:
		switch {
		case !in.Host.Seccomp:
			return nil, nil
		case in.Host.SeccompDefault != nil:
			return ParseSeccomp(in.Host.SeccompDefault, caps, runtime.GOARCH)
		}
		profile := DefaultSeccomp(caps, runtime.GOARCH)
		// Each further architecture makes the filter a third longer and the start of a container
		// some milliseconds slower, for programs that could not run anyway.
		if in.Host.Arches != nil {
			profile.Architectures = in.Host.Arches
		}
		return profile, nil
	}
	return nil, nil
}

// A profileFile is a profile file: OCI's linux.seccomp, or the format that container engines
// ship, whose rules have conditions.
type profileFile struct {
	specs.LinuxSeccomp
	ArchMap []struct {
		Architecture     specs.Arch   `json:"architecture"`
		SubArchitectures []specs.Arch `json:"subArchitectures"`
	} `json:"archMap"`
	Syscalls []struct {
		specs.LinuxSyscall
		Name     string     `json:"name"`
		Includes ruleFilter `json:"includes"`
		Excludes ruleFilter `json:"excludes"`
	} `json:"syscalls"`
}

// A ruleFilter is the condition of a rule. Kernel versions ("minKernel") are ignored: those in
// use are all older than crisp's minimum.
type ruleFilter struct {
	Caps   []string `json:"caps"`
	Arches []string `json:"arches"`
}

// ParseSeccomp parses a profile file: OCI's own format, or the common one with "archMap" and
// rules that include or exclude capabilities and architectures. caps are names with CAP_, arch
// is as in runtime.GOARCH.
func ParseSeccomp(profile []byte, caps []string, arch string) (*specs.LinuxSeccomp, error) {
	var f profileFile
	if err := json.Unmarshal(profile, &f); err != nil {
		return nil, fault.Invalid.Errorf("no seccomp profile: %w", err)
	}
	if f.DefaultAction == "" {
		return nil, fault.Invalid.Errorf("not a seccomp profile: it has no defaultAction")
	}
	if len(f.ArchMap) > 0 && len(f.Architectures) > 0 {
		return nil, fault.Invalid.Errorf("seccomp profile has both architectures and archMap")
	}
	out := f.LinuxSeccomp
	native := seccompArch[arch]
	for _, m := range f.ArchMap {
		if len(native) > 0 && m.Architecture == native[0] {
			out.Architectures = append([]specs.Arch{m.Architecture}, m.SubArchitectures...)
		}
	}
	for _, s := range f.Syscalls {
		if s.Name != "" {
			if len(s.Names) > 0 {
				return nil, fault.Invalid.Errorf("seccomp rule has both name %q and names", s.Name)
			}
			s.Names = []string{s.Name}
		}
		if s.Includes.applies(caps, arch, true) && !s.Excludes.applies(caps, arch, false) {
			out.Syscalls = append(out.Syscalls, s.LinuxSyscall)
		}
	}
	return &out, nil
}

// applies reports whether the filter matches. An include needs all capabilities and one of the
// architectures; an exclude any one of either. An empty list is no condition.
func (f ruleFilter) applies(caps []string, arch string, include bool) bool {
	isMissing := func(c string) bool { return !slices.Contains(caps, c) }
	if include {
		return !slices.ContainsFunc(f.Caps, isMissing) && (len(f.Arches) == 0 || slices.Contains(f.Arches, arch))
	}
	hasCap := func(c string) bool { return slices.Contains(caps, c) }
	return slices.ContainsFunc(f.Caps, hasCap) || slices.Contains(f.Arches, arch)
}
