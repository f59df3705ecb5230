package oci

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/periodic"
)

// Opening a cgroup file takes the kernel eight times as long as reading it, so the files that
// CRI's statistics are made of stay open from their first use. An open file costs the kernel
// some 5 KiB, hence the limits:
//
//   - keptMax files of all containers and sandboxes together, and half of RLIMIT_NOFILE. Files
//     beyond that are opened each time.
//   - keptIdle without a reader.
//
// A cgroup can be removed and created again under the same path, as the kubelet does with a
// pod's: the open file then belongs to the removed one and cannot be read.
const (
	keptMax  = 20_000 // 1000 pods of one container
	keptIdle = 2 * time.Minute
)

// A keptBudget counts the kept files and limits them.
type keptBudget struct {
	max  int64
	used atomic.Int64
}

func newKeptBudget() *keptBudget {
	limit := unix.Rlimit{}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // cannot fail; 0 keeps none
	return &keptBudget{max: int64(min(keptMax, limit.Cur/2))}
}

// keptFiles are the open files of one cgroup. The zero value keeps none.
type keptFiles struct {
	budget *keptBudget
	over   atomic.Bool // for good

	mu    sync.Mutex // held while files are read
	files []keptFile // guarded by mu
	used  time.Time  // guarded by mu
}

type keptFile struct {
	controller, name string
	fd               int
}

// find returns a kept file. The caller holds mu.
func (k *keptFiles) find(controller, name string) (fd int, ok bool) {
	for i := range k.files {
		if f := &k.files[i]; f.name == name && f.controller == controller {
			return f.fd, true
		}
	}
	return 0, false
}

// keep takes ownership of a file, and reports whether it did. The caller holds mu.
func (k *keptFiles) keep(controller, name string, fd int) bool {
	if k.budget == nil || k.over.Load() {
		return false
	}
	if k.budget.used.Add(1) > k.budget.max {
		k.budget.used.Add(-1)
		return false
	}
	k.files = append(k.files, keptFile{controller, name, fd})
	return true
}

// drop closes the files. The caller holds mu.
func (k *keptFiles) drop() {
	for _, f := range k.files {
		unix.Close(f.fd)
		k.budget.used.Add(-1)
	}
	k.files = nil
}

// read reads the counters that CRI's statistics are made of.
func (k *keptFiles) read(dirs map[string]string) (Stats, error) {
	k.mu.Lock()
	k.used = time.Now()
	s, stale, err := readStats(dirs, k, false)
	if stale { // at least one file belongs to a removed cgroup
		k.drop()
		s, _, err = readStats(dirs, k, false)
	}
	if err != nil {
		k.drop()
	}
	k.mu.Unlock()
	k.tidy()
	return s, err
}

// close closes the files for good. It does not wait for a reader, which then closes them itself.
func (k *keptFiles) close() {
	k.over.Store(true)
	k.tidy()
}

// tidy closes the files if close was called and nobody reads.
func (k *keptFiles) tidy() {
	if k.over.Load() && k.mu.TryLock() {
		k.drop()
		k.mu.Unlock()
	}
}

// rest closes the files if nobody has read them since.
func (k *keptFiles) rest(since time.Time) {
	if !k.mu.TryLock() {
		return // somebody reads
	}
	if k.used.Before(since) {
		k.drop()
	}
	k.mu.Unlock()
	k.tidy()
}

// restKept closes the files that nobody reads any more, until ctx ends.
func (r *Runtime) restKept(ctx context.Context) {
	periodic.Run(ctx, keptIdle, func(context.Context) {
		since := time.Now().Add(-keptIdle)
		for _, c := range r.containers.list() {
			c.counters.rest(since)
		}
		for _, sb := range r.sandboxes.list() {
			sb.counters.rest(since)
		}
	})
}
