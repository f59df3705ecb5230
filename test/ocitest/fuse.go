package ocitest

import (
	"sync"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A Fuse counts the steps of a daemon at the edges of its process (a record, a
// call to the executor, something asked of the kernel) and makes it die at one
// of them: that step and all later ones fail and do nothing. The zero Fuse never
// blows.
type Fuse struct {
	mu    sync.Mutex
	meet  func(step string) error // guarded by mu
	steps int                     // taken since Set; guarded by mu
	at    int                     // 0 = never; guarded by mu
	after bool                    // guarded by mu
	blown bool                    // guarded by mu
}

// ErrDead is the error that a dead daemon gets. It must not draw conclusions from it,
// as a really dead one could not.
var ErrDead = fault.Unavailable.Errorf("the daemon is dead")

// Set makes the fuse blow at the n-th step from now, before the step takes
// effect or right after. Set(0, false) mends it.
func (f *Fuse) Set(n int, after bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps, f.at, f.after, f.blown = 0, n, after, false
}

// Blown reports whether the daemon has died.
func (f *Fuse) Blown() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.blown
}

// Meet sets a function to be called before each step, with its name: the method of a
// call to the executor, the name in FailHost, or "save" and "remove" for a record. It
// may block, except before the last two, which happen under locks. Its error replaces
// the step.
func (f *Fuse) Meet(meet func(step string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.meet = meet
}

// Step does one step. It is exported for other fakes of a daemon's surroundings.
func (f *Fuse) Step(name string, do func() error) error {
	f.mu.Lock()
	meet, dead := f.meet, f.blown
	f.mu.Unlock()
	if dead {
		return ErrDead
	}
	if meet != nil {
		if err := meet(name); err != nil {
			return err
		}
	}
	f.mu.Lock()
	if f.blown {
		f.mu.Unlock()
		return ErrDead
	}
	f.steps++
	hit := f.at > 0 && f.steps == f.at
	f.blown = hit
	after := f.after
	f.mu.Unlock()
	if hit && !after {
		return ErrDead
	}
	err := do()
	if hit {
		return ErrDead
	}
	return err
}
