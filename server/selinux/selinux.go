// Package selinux assigns SELinux labels to pods and containers, and relabels what is mounted
// into them.
//
// A label is user:role:type:level. The policy decides the user, role and type of containers: its
// file lxc_contexts defines them for every runtime (selinux_lxc_contexts(5)). We choose the
// level: two categories that no other pod of the node has, which separates pods of the same
// type. All containers of a pod share it, and so the pod's files.
//
//	container        process label                       mount label
//	plain            the pod's                           the pod's: context= of the root file system
//	with options     the pod's, changed by them          the pod's, with their user and level
//	privileged       none: the policy's transition       the pod's
//	host PID or IPC  none, and no mount label, unless the pod's options name one
//
// None means that the kernel decides, from crisp-executor's own label: a policy for containers
// makes it spc_t. The processes of such a pod share with the host what labels would separate.
//
// All images have one label, for files that containers may run: ReadOnly.
//
// On a host without SELinux there is no Policy: the methods of a nil Policy do nothing, and
// options have no effect.
package selinux

import (
	"fmt"
	"strings"
	"sync"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Labels are the labels of a pod or a container; "" leaves one to the policy.
type Labels struct {
	Process string `json:",omitempty"` // of its processes
	Mount   string `json:",omitempty"` // of its root file system and of the files it may change
}

// A Policy is the loaded SELinux policy, and the levels in use.
type Policy struct {
	process, file selinux.Context // of containers, including the level; nil = the policy has none
	readOnly      string          // see ReadOnly
	canonical     func(full string) (string, error)

	mu     sync.Mutex
	levels map[string]string // pod → its level
}

// Open reads the policy of this host; nil where SELinux is off. The error means that the policy
// has no labels for containers: the Policy returned with it labels only what requests a complete
// label.
func Open() (*Policy, error) {
	if !selinux.GetEnabled() {
		return nil, nil
	}
	process, file, err := label.InitLabels(nil)
	if err != nil {
		return New("", "", selinux.CanonicalizeContext), err
	}
	selinux.ReleaseLabel(process) // levels are assigned here, not by the library
	p := New(process, file, selinux.CanonicalizeContext)
	if p.process == nil {
		return p, fault.Unavailable.Errorf("the SELinux policy has no labels for containers in its lxc_contexts")
	}
	for _, c := range []selinux.Context{p.process, p.file} {
		if _, err := p.canonical(c.Get()); err != nil {
			p.process, p.file = nil, nil
			return p, fault.Unavailable.Errorf("the loaded SELinux policy does not know %s, which its lxc_contexts names for containers: %w", c["type"], err)
		}
	}
	if l := selinux.ROFileLabel(); l != "" {
		if l, err := p.canonical(l); err == nil {
			p.readOnly = strings.TrimRight(l, "\x00")
		}
	}
	return p, nil
}

// New is Open with labels and a kernel of the caller's choice: canonical returns a label as the
// kernel writes it, or an error. An empty label is missing.
func New(process, file string, canonical func(string) (string, error)) *Policy {
	p := &Policy{canonical: canonical, levels: map[string]string{}}
	if process != "" && file != "" {
		p.process, p.file = bare(process), bare(file)
	}
	return p
}

// bare returns a label without its categories.
func bare(full string) selinux.Context {
	c, err := selinux.NewContext(full)
	if err != nil {
		return nil
	}
	c["level"], _, _ = strings.Cut(c["level"], ":")
	return c
}

// Shared returns the label of files that all containers may read; "" without a policy.
func (p *Policy) Shared() string {
	if p == nil || p.file == nil {
		return ""
	}
	return p.file.Get()
}

// ReadOnly returns the label of image files, which all containers may read and
// run, but not change; "" without a policy, or if the policy has none.
func (p *Policy) ReadOnly() string {
	if p == nil {
		return ""
	}
	return p.readOnly
}

// check returns the labels as the kernel writes them, for comparison.
func (p *Policy) check(l Labels) (Labels, error) {
	for _, s := range []*string{&l.Process, &l.Mount} {
		if *s == "" {
			continue
		}
		c, err := p.canonical(*s)
		if err != nil {
			return Labels{}, fault.Invalid.Errorf("SELinux label %s: the loaded policy does not know it: %w", *s, err)
		}
		*s = strings.TrimRight(c, "\x00")
	}
	return l, nil
}

// describe formats a label's parts for an error.
func describe(c selinux.Context) string {
	return fmt.Sprintf("user %q, role %q, type %q, level %q", c["user"], c["role"], c["type"], c["level"])
}
