package layer

import "github.com/opencontainers/go-digest"

// Has reports whether a layer is in the store, and whole.
func (ls *Store) Has(id digest.Digest) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.m[id]
	return l != nil && l.gone == nil && l.isReady()
}
