package oci_test

import (
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci"
)

// A fakeStore keeps descriptors as a service manager does.
type fakeStore struct {
	mu   sync.Mutex
	kept map[string]int
}

func (s *fakeStore) Keep(name string, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept[name], err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
	})
}

func (s *fakeStore) Forget(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fd, ok := s.kept[name]; ok {
		unix.Close(fd)
		delete(s.kept, name)
	}
	return nil
}

func (s *fakeStore) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.kept))
}

// passed returns the descriptors that the next daemon gets.
func (s *fakeStore) passed() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	dups := map[string]int{}
	for name, fd := range s.kept {
		dups[name], _ = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	}
	return dups
}

// The store has the descriptors of running containers and sandboxes, under names so short
// that those of 8192 fit into an environment variable of 128 KiB, and none of ended or
// unknown ones.
func TestStoreHasWhatRuns(t *testing.T) {
	inBubble(t, func(b *bed) {
		store := &fakeStore{kept: map[string]int{}}
		open := func() {
			b.Helper()
			b.ok(b.r.Close())
			o := b.m.Options(b.T)
			o.Store, o.Stored = store, store.passed()
			var err error
			b.r, err = oci.Open(b.Context(), o)
			b.ok(err)
			synctest.Wait()
		}
		open()
		c, over := b.start("sleep", "for-ever"), b.start("exit", "3")
		<-over.Done()
		synctest.Wait()
		names := store.names()
		if len(names) == 0 {
			b.Fatal("no descriptors of the running container are kept")
		}
		for _, name := range names {
			if name[:12] != c.ID()[:12] || len(name)+1 > 128<<10/8192-1 {
				b.Errorf("kept is %s, of container %s", name, c.ID())
			}
		}
		store.kept["0123456789ab.o"] = store.passed()[names[0]] // of a container that does not exist
		store.kept["junk"] = store.passed()[names[0]]
		open()
		if got := store.names(); !slices.Equal(got, names) {
			b.Errorf("after a restart, descriptors %q are kept, want %q", got, names)
		}
		c, err := b.r.Container(c.ID())
		b.ok(err)
		b.ok(c.Stop(b.Context(), unix.SIGKILL, 0))
		synctest.Wait()
		if left := store.names(); len(left) > 0 {
			b.Errorf("descriptors of an ended container are kept: %q", left)
		}
	})
}
