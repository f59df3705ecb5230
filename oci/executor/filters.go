package executor

import (
	"log/slog"
	"sync"

	"github.com/opencontainers/runc/libcontainer/configs"

	"github.com/crisp-cri/crisp/oci/executor/fastinit"
)

// filters are the compiled seccomp profiles. libcontainer's child compiles the profile each
// time, which takes 8 to 15 ms; fastinit's gets it compiled once.
type filters struct {
	log *slog.Logger

	mu  sync.Mutex
	all map[*configs.Syscall]*filter // by the first rule of an interned profile; guarded by mu
}

// A filter is one profile.
type filter struct {
	profile configs.Seccomp // keeps the key from being reused
	once    sync.Once
	program *fastinit.Filter
	err     error
}

func newFilters(log *slog.Logger) *filters {
	return &filters{log: log, all: make(map[*configs.Syscall]*filter)}
}

// of returns the program of an interned profile; nil means none. The error is
// fastinit.ErrUnsupported if libcontainer has to load it.
func (f *filters) of(profile *configs.Seccomp) (*fastinit.Filter, error) {
	if profile == nil {
		return nil, nil
	}
	if len(profile.Syscalls) == 0 {
		return nil, fastinit.ErrUnsupported
	}
	key := profile.Syscalls[0]
	f.mu.Lock()
	one := f.all[key]
	if one == nil {
		if len(f.all) >= maxInterned {
			clear(f.all)
		}
		one = &filter{profile: *profile}
		f.all[key] = one
	}
	f.mu.Unlock()
	one.once.Do(func() {
		if one.program, one.err = compile(&one.profile); one.err != nil {
			f.log.Warn("seccomp profile was left to libcontainer", "err", one.err)
			one.err = fastinit.ErrUnsupported
		}
	})
	return one.program, one.err
}
