package fastinit

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/capability"
	"github.com/opencontainers/runc/libcontainer/configs"
)

// A Process describes the program that a child executes.
type Process struct {
	Args, Env []string // Env has each name once; HOME is added if it is missing
	Cwd       string   // "" = /
	UID, GID  int
	Groups    []int

	Capabilities    *configs.Capabilities // nil = none
	NoNewPrivileges bool
	AppArmor        string  // profile; "" = none
	Seccomp         *Filter // nil = none
}

// A Filter is a seccomp program in the kernel's form.
type Filter struct {
	Program []byte // struct sock_filter, seccomp(2)
	Flags   uint64 // of SECCOMP_SET_MODE_FILTER
}

// process appends the last step.
func (p *Plan) process(q Process) error {
	if q.Capabilities == nil {
		q.Capabilities = &configs.Capabilities{}
	}
	last, err := capability.LastCap()
	if err != nil {
		return err
	}
	filter := q.Seccomp
	if filter == nil {
		filter = &Filter{}
	}
	apparmor := ""
	if q.AppArmor != "" {
		p.add(stepProcfs, "mount procfs")
		apparmor = "exec " + q.AppArmor
	}
	var groups []byte
	for _, g := range q.Groups {
		groups = binary.NativeEndian.AppendUint32(groups, uint32(g))
	}
	c := q.Capabilities
	p.args, p.cwd = q.Args, q.Cwd
	p.add(stepProcess, "set up the process", q.UID, q.GID, groups,
		bits(c.Bounding), bits(c.Effective), bits(c.Permitted), bits(c.Inheritable), bits(c.Ambient),
		q.NoNewPrivileges, int(last), filter.Flags, filter.Program, apparmor, q.Cwd, q.Args, unique(q.Env))
	return nil
}

// capabilities maps names to bits.
var capabilities = sync.OnceValue(func() map[string]uint64 {
	m := make(map[string]uint64)
	for _, c := range capability.ListKnown() {
		m["CAP_"+strings.ToUpper(c.String())] = 1 << c
	}
	return m
})

// bits returns a set of capabilities for capset(2). It skips unknown ones, like libcontainer.
func bits(names []string) (set uint64) {
	for _, n := range names {
		set |= capabilities()[n]
	}
	return set
}

// unique drops all but the last variable of each name.
func unique(env []string) []string {
	seen := make(map[string]bool, len(env))
	out := make([]string, 0, len(env))
	for i := len(env) - 1; i >= 0; i-- {
		name, _, _ := strings.Cut(env[i], "=")
		if !seen[name] {
			seen[name] = true
			out = append(out, env[i])
		}
	}
	slices.Reverse(out)
	return out
}
