package executor

import (
	"sync"

	"github.com/opencontainers/runc/libcontainer"
)

// A handlePool lends libcontainer's handle of a container to one caller at a time. libcontainer
// locks the handle from the start of an exec until its program runs; other callers meanwhile get
// another one, loaded from libcontainer's state.
type handlePool struct {
	mu   sync.Mutex
	free *libcontainer.Container // guarded by mu; one is kept
}

// take lends the kept handle, or one from load.
func (p *handlePool) take(load func() (*libcontainer.Container, error)) (*libcontainer.Container, error) {
	p.mu.Lock()
	lc := p.free
	p.free = nil
	p.mu.Unlock()
	if lc != nil {
		return lc, nil
	}
	return load()
}

// put returns a handle.
func (p *handlePool) put(lc *libcontainer.Container) {
	p.mu.Lock()
	if p.free == nil {
		p.free = lc
	}
	p.mu.Unlock()
}

// drop discards the kept handle, which is out of date.
func (p *handlePool) drop() {
	p.mu.Lock()
	p.free = nil
	p.mu.Unlock()
}

// borrow lends a handle of the container.
func (b *builtin) borrow() (*libcontainer.Container, error) {
	return b.handles.take(func() (*libcontainer.Container, error) { return b.all.load(b.id) })
}
