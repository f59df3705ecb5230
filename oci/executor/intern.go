package executor

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"sync"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	libseccomp "github.com/seccomp/libseccomp-golang" // ours: oci/libseccomp
)

// maxInterned bounds the number of seccomp profiles kept.
const maxInterned = 64

// A profile is a seccomp profile that containers share.
type profile struct {
	compile sync.Once
	shared  *configs.Seccomp // with its program, once compile is done
}

// intern makes containers share their seccomp profile, which is most of a container's
// configuration, and nearly always the same. libcontainer does not change it. own becomes a copy
// of the shared one, with its filter compiled; nobody else may use it yet.
func (b *builtins) intern(own *configs.Seccomp) {
	if own == nil {
		return
	}
	// libcontainer's state has the program of the executor that wrote it, which may have had
	// another libseccomp.
	own.Syscalls = slices.DeleteFunc(own.Syscalls, givesProgram)
	data, err := json.Marshal(own)
	if err != nil {
		return
	}
	key := sha256.Sum256(data)
	b.mu.Lock()
	p, ok := b.interned[key]
	if !ok {
		if len(b.interned) >= maxInterned {
			clear(b.interned)
		}
		p = &profile{}
		b.interned[key] = p
	}
	b.mu.Unlock()
	p.compile.Do(func() { p.shared = b.compiled(*own) })
	*own = *p.shared
}

// compiled returns a profile with its filter's program, which spares libcontainer's children its
// compilation; see package libseccomp. To a libcontainer that knows nothing of programs, such as
// an older executor's, the returned profile means the same.
func (b *builtins) compiled(p configs.Seccomp) *configs.Seccomp {
	program, err := libseccomp.Compile(func() error { _, err := seccomp.InitSeccomp(&p); return err })
	if err != nil {
		b.log.Warn("seccomp filter will be compiled by each process that loads it", "err", err)
		return &p
	}
	rule := &configs.Syscall{Name: libseccomp.Rule(program), Action: configs.Allow}
	if p.DefaultAction == configs.Allow {
		rule.Action = configs.Errno // with the default action it would be left out
	}
	p.Syscalls = slices.Concat([]*configs.Syscall{rule}, p.Syscalls)
	return &p
}

// givesProgram reports whether a rule was added by compiled.
func givesProgram(rule *configs.Syscall) bool { return libseccomp.IsRule(rule.Name) }

// load loads a handle of a container from libcontainer's state. It may be kept while the
// container runs (handlePool), so its profile is shared with other containers too.
func (b *builtins) load(id string) (*libcontainer.Container, error) {
	lc, err := libcontainer.Load(b.root, id)
	if err != nil {
		return nil, err
	}
	config := lc.Config()
	b.intern(config.Seccomp)
	return lc, nil
}
