package api

import (
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/volume"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// measuredEvery is how long the measured size of a directory is reused, as in the kubelet: a scrape
// should not walk every file.
const measuredEvery = time.Minute

// diskUse caches the disk usage of directories.
type diskUse struct {
	mu   sync.Mutex
	dirs map[string]*measured // by path; guarded by mu
}

type measured struct {
	mu            sync.Mutex // held during the walk, so that concurrent requests share it
	at            time.Time  // guarded by mu, as are those below
	bytes, inodes uint64

	asked time.Time // guarded by diskUse.mu
}

// of returns the usage of a directory, measured at most measuredEvery ago, and the current free
// space of its file system; nil if the directory cannot be read.
func (u *diskUse) of(dir string) *stats.FsStats {
	fs := statfs(dir)
	if fs == nil {
		return nil
	}
	m := u.entry(dir)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() || time.Since(m.at) >= measuredEvery {
		bytes, inodes := volume.Usage(dir)
		m.bytes, m.inodes, m.at = uint64(bytes), uint64(inodes), time.Now()
	}
	used, taken := m.bytes, m.inodes
	fs.Time, fs.UsedBytes, fs.InodesUsed = metav1.NewTime(m.at), &used, &taken
	return fs
}

// entry returns the entry of a directory. It drops entries that are no longer requested, because
// their pods are gone.
func (u *diskUse) entry(dir string) *measured {
	u.mu.Lock()
	defer u.mu.Unlock()
	m := u.dirs[dir]
	if m == nil {
		for path, other := range u.dirs {
			if time.Since(other.asked) >= measuredEvery {
				delete(u.dirs, path)
			}
		}
		if u.dirs == nil {
			u.dirs = map[string]*measured{}
		}
		m = &measured{}
		u.dirs[dir] = m
	}
	m.asked = time.Now()
	return m
}
