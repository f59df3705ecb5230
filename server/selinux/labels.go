package selinux

import (
	"fmt"
	"maps"
	"math/rand/v2"

	"github.com/opencontainers/selinux/go-selinux"

	"github.com/crisp-cri/crisp/internal/fault"
)

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
		return Labels{}, fault.Invalid.Errorf("SELinux label of %s: the policy has no label for containers that could complete it", describe(process))
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
