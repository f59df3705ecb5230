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
	"maps"
	"math/rand/v2"
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
	//lint:ignore SA1019 nothing else reads the policy's label of read-only files
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

// Options are the parts of a label that a pod or a container may choose through CRI; "" = not
// chosen.
type Options struct {
	User, Role, Type, Level string
}

func (o Options) apply(c selinux.Context) {
	for part, value := range map[string]string{"user": o.User, "role": o.Role, "type": o.Type, "level": o.Level} {
		if value != "" {
			c[part] = value
		}
	}
}

// categories is the conventional number of categories, c0 to c1023.
const categories = 1024

// Pod returns the labels of a pod. Its level is reserved, exclusively unless the options name
// it, until Release. host says that the pod uses the host's PID or IPC namespace. The error is
// fault.Invalid for labels that the policy does not know.
func (p *Policy) Pod(id string, o Options, host bool) (Labels, error) {
	if p == nil || o == (Options{}) && (host || p.process == nil) {
		return Labels{}, nil
	}
	if o.Level == "" && p.process != nil {
		level, err := p.reserve(id)
		if err != nil {
			return Labels{}, err
		}
		o.Level = level
	}
	l, err := p.compose(Labels{}, o)
	if err != nil {
		p.Release(id)
		return Labels{}, err
	}
	p.Keep(id, l)
	return l, nil
}

// Container returns the labels of a container in a pod with the labels pod.
func (p *Policy) Container(pod Labels, o Options, privileged bool) (l Labels, err error) {
	if p == nil {
		return Labels{}, nil
	}
	l = pod
	if o != (Options{}) {
		if l, err = p.compose(pod, o); err != nil {
			return Labels{}, err
		}
	}
	// CRI, of privileged mode: "SELinux restrictions are not applied". Invalid options are still
	// an error.
	if privileged {
		l.Process = ""
	}
	return l, nil
}

// compose applies options to base or, if that is empty, to the policy's labels. The type applies
// to the process: files keep the type that all containers may use.
func (p *Policy) compose(base Labels, o Options) (Labels, error) {
	process, file := maps.Clone(p.process), maps.Clone(p.file)
	for _, b := range []struct {
		label string
		to    *selinux.Context
	}{{base.Process, &process}, {base.Mount, &file}} {
		if b.label == "" {
			continue
		}
		c, err := selinux.NewContext(b.label)
		if err != nil {
			return Labels{}, fmt.Errorf("SELinux label %s: %w", b.label, err)
		}
		*b.to = c
	}
	if process == nil {
		process = selinux.Context{}
	}
	o.apply(process)
	if process["user"] == "" || process["role"] == "" || process["type"] == "" {
		return Labels{}, fault.Invalid.Errorf("SELinux label of user %q, role %q, type %q, level %q: the policy has no label for containers that could complete it",
			process["user"], process["role"], process["type"], process["level"])
	}
	l := Labels{Process: process.Get()}
	if file != nil {
		Options{User: o.User, Level: o.Level}.apply(file)
		l.Mount = file.Get()
	}
	return p.check(l)
}

// reserve gives a pod a level that no other pod has.
func (p *Policy) reserve(id string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if level, ok := p.levels[id]; ok {
		return level, nil
	}
	used := make(map[string]bool, len(p.levels))
	for _, level := range p.levels {
		used[level] = true
	}
	// Out of half a million pairs, the first is almost always free.
	for range 1000 {
		a, b := rand.IntN(categories), rand.IntN(categories)
		if a == b {
			continue
		}
		level := fmt.Sprintf("%s:c%d,c%d", p.process["level"], min(a, b), max(a, b))
		if !used[level] {
			p.levels[id] = level
			return level, nil
		}
	}
	return "", fault.Unavailable.Errorf("no SELinux level is free for sandbox %s: %d are in use", id, len(used))
}

// Keep reserves the level of a pod that already has labels.
func (p *Policy) Keep(id string, l Labels) {
	if p == nil || l.Process == "" {
		return
	}
	c, err := selinux.NewContext(l.Process)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.levels[id] = c["level"]
}

// Release frees the pod's level. Repeating it does no harm.
func (p *Policy) Release(id string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.levels, id)
}
