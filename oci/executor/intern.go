package executor

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// maxInterned bounds the number of seccomp profiles that are kept.
const maxInterned = 64

type internedEntry struct{ profile *configs.Seccomp }

// intern lets containers share their seccomp profile: it is most of a container's
// configuration, and nearly always the same. libcontainer does not change it.
func (x *Executor) intern(spec *specs.Spec, config *configs.Config) {
	if config.Seccomp == nil {
		return
	}
	data, err := json.Marshal(spec.Linux.Seccomp)
	if err != nil {
		return
	}
	key := sha256.Sum256(data)
	x.mu.Lock()
	defer x.mu.Unlock()
	if e, ok := x.interned[key]; ok {
		config.Seccomp = e.profile
		return
	}
	if len(x.interned) >= maxInterned {
		clear(x.interned)
	}
	x.interned[key] = internedEntry{config.Seccomp}
}
