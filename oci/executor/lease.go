package executor

import (
	"sync"

	"github.com/opencontainers/runc/libcontainer"
)

// A lease lends libcontainer's view of a container to one caller at a time. The
// view is locked by libcontainer from the start of an exec until its program runs;
// who comes meanwhile gets another view, loaded from libcontainer's state.
type lease struct {
	mu   sync.Mutex
	free *libcontainer.Container // guarded by mu; one is kept
}

// take lends the view that is kept, or what load makes.
func (l *lease) take(load func() (*libcontainer.Container, error)) (*libcontainer.Container, error) {
	l.mu.Lock()
	lc := l.free
	l.free = nil
	l.mu.Unlock()
	if lc != nil {
		return lc, nil
	}
	return load()
}

// put gives a view back.
func (l *lease) put(lc *libcontainer.Container) {
	l.mu.Lock()
	if l.free == nil {
		l.free = lc
	}
	l.mu.Unlock()
}

// drop forgets the view that is kept: it is out of date.
func (l *lease) drop() {
	l.mu.Lock()
	l.free = nil
	l.mu.Unlock()
}

// borrow lends a view of the container.
func (b *builtin) borrow() (*libcontainer.Container, error) {
	return b.lease.take(func() (*libcontainer.Container, error) { return b.all.load(b.id) })
}
