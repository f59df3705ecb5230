package executor

import (
	"sync"

	"github.com/opencontainers/runc/libcontainer"
)

// A lease lends libcontainer's view of a container to one caller at a time.
// libcontainer locks the view from the start of an exec until its program runs;
// other callers meanwhile get another view, loaded from libcontainer's state.
type lease struct {
	mu   sync.Mutex
	free *libcontainer.Container // guarded by mu; one is kept
}

// take lends the kept view, or one from load.
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

// put returns a view.
func (l *lease) put(lc *libcontainer.Container) {
	l.mu.Lock()
	if l.free == nil {
		l.free = lc
	}
	l.mu.Unlock()
}

// drop discards the kept view, which is out of date.
func (l *lease) drop() {
	l.mu.Lock()
	l.free = nil
	l.mu.Unlock()
}

// borrow lends a view of the container.
func (b *builtin) borrow() (*libcontainer.Container, error) {
	return b.lease.take(func() (*libcontainer.Container, error) { return b.all.load(b.id) })
}
