package executor

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
)

// maxInterned bounds the number of seccomp profiles that are kept.
const maxInterned = 64

// intern makes containers share their seccomp profile: it is most of a container's
// configuration, and nearly always the same. libcontainer does not change it. profile
// becomes a copy of the shared one; nobody else may use it yet.
func (b *builtins) intern(profile *configs.Seccomp) {
	if profile == nil {
		return
	}
	data, err := json.Marshal(profile)
	if err != nil {
		return
	}
	key := sha256.Sum256(data)
	b.mu.Lock()
	defer b.mu.Unlock()
	if shared, ok := b.interned[key]; ok {
		*profile = *shared
		return
	}
	if len(b.interned) >= maxInterned {
		clear(b.interned)
	}
	b.interned[key] = profile
}

// load makes a view of a container from libcontainer's state. As it may be kept while
// the container runs (lease), its profile is shared with other containers too.
func (b *builtins) load(id string) (*libcontainer.Container, error) {
	lc, err := libcontainer.Load(b.root, id)
	if err != nil {
		return nil, err
	}
	config := lc.Config()
	b.intern(config.Seccomp)
	return lc, nil
}
