package executor

import (
	"log/slog"
	"sync"
	"time"

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

	mu      sync.Mutex       // held while it is compiled
	program *fastinit.Filter // guarded by mu
	failed  time.Time        // the last failure; guarded by mu
}

// filterPause is how long a profile that failed is left to libcontainer: the failure may have been
// one of memory or descriptors.
const filterPause = time.Minute

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
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.program != nil {
		return one.program, nil
	}
	if !one.failed.IsZero() && time.Since(one.failed) < filterPause {
		return nil, fastinit.ErrUnsupported
	}
	var err error
	if one.program, err = compile(&one.profile); err != nil {
		f.log.Warn("seccomp profile was left to libcontainer for a while", "err", err)
		one.program, one.failed = nil, time.Now()
		return nil, fastinit.ErrUnsupported
	}
	return one.program, nil
}
