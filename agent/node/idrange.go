package node

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// IDsPerPod is how many IDs a pod gets: the range of 16-bit IDs.
const IDsPerPod = 65536

// Ranges are numbered: range n begins with the ID n*IDsPerPod. The first one has the node's own IDs. Of
// the last one the greatest ID is invalid.
const (
	firstRange = 1
	lastRange  = 1<<16 - 2
)

// idOwners are the users whose subordinate IDs (subuid(5), subgid(5)) are for pods. The first one
// that has any counts.
var idOwners = []string{"crisp", "kubelet"}

// An IDPool assigns user and group IDs to pods with user namespaces: to each pod 65536
// host IDs that no other pod has. It records them in the pod's directory, in pods/<uid>/userns
// in the kubelet's format, because they must not change while the pod exists, even if the agent
// restarts. It never assigns the ranges of existing sandboxes: they may belong to another agent,
// to a kubelet, or to a pod of this agent whose record cannot be read. It is
// safe for concurrent use.
type IDPool struct {
	pods        string // directory of the pods' directories
	first, last uint32 // the ranges to assign

	mu    sync.Mutex
	taken map[string]uint32 // by UID of the pod; guarded by mu
	lost  map[string]bool   // pods whose records could not be read; guarded by mu
}

type idMapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

type idRecord struct {
	UIDMappings []idMapping `json:"uidMappings"`
	GIDMappings []idMapping `json:"gidMappings"`
}

// OpenIDs returns an IDPool, with the ranges that are recorded in the pods' directories below pods.
// Without subordinate IDs for pods it assigns all IDs from 65536 on, except the last 65536.
func OpenIDs(pods string, log *slog.Logger) (*IDPool, error) {
	p := &IDPool{pods: pods, first: firstRange, last: lastRange, taken: map[string]uint32{}, lost: map[string]bool{}}
	if first, last, ok := subordinate("/etc/subuid", "/etc/subgid"); ok {
		p.first, p.last = first, last
	}
	entries, err := os.ReadDir(pods)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		n, err := p.read(e.Name())
		switch {
		case err == nil:
			p.taken[e.Name()] = n
		case !errors.Is(err, fs.ErrNotExist):
			log.Warn("user IDs of a pod not read", "uid", e.Name(), "err", err)
			p.lost[e.Name()] = true
		}
	}
	return p, nil
}

// read returns the number of the range in the record of a pod.
func (p *IDPool) read(uid string) (uint32, error) {
	var r idRecord
	if err := atomicfile.ReadJSON(p.file(uid), &r); err != nil {
		return 0, err
	}
	if len(r.UIDMappings) != 1 {
		return 0, fmt.Errorf("it has %d ranges", len(r.UIDMappings))
	}
	n := r.UIDMappings[0].HostID / IDsPerPod
	if n < firstRange || n > lastRange {
		return 0, fmt.Errorf("its IDs begin with %d", r.UIDMappings[0].HostID)
	}
	return n, nil
}

func (p *IDPool) file(uid string) string { return filepath.Join(p.pods, uid, "userns") }

// subordinate returns the whole ranges in the subordinate IDs of the first owner that has the
// same ones in both files, except those that no pod may have.
func subordinate(uids, gids string) (first, last uint32, ok bool) {
	for _, owner := range idOwners {
		from, n := rangeOf(uids, owner)
		gfrom, gn := rangeOf(gids, owner)
		if n > 0 && from == gfrom && n == gn {
			begin := max((uint64(from)+IDsPerPod-1)/IDsPerPod, firstRange)
			end := min((uint64(from)+uint64(n))/IDsPerPod, lastRange+1)
			if begin < end {
				return uint32(begin), uint32(end - 1), true
			}
		}
	}
	return 0, 0, false
}

// rangeOf returns the first subordinate IDs of an owner; n is 0 without any.
func rangeOf(path, owner string) (from, n uint32) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(data)) {
		words := strings.Split(strings.TrimSpace(line), ":")
		if len(words) != 3 || words[0] != owner {
			continue
		}
		a, err1 := strconv.ParseUint(words[1], 10, 32)
		b, err2 := strconv.ParseUint(words[2], 10, 32)
		if err1 == nil && err2 == nil {
			return uint32(a), uint32(b)
		}
	}
	return 0, 0
}

// Of returns the IDs of a pod, and assigns some if it has none. inUse returns the IDs of
// existing sandboxes; it may be nil. If the pod has a record that cannot be read, Of fails: with
// new IDs the pod could not use the files that it has written.
func (p *IDPool) Of(uid string, inUse func() ([]*cri.IDMapping, error)) (*cri.UserNamespace, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.taken[uid]
	if !ok {
		var err error
		if n, err = p.take(uid, inUse); err != nil {
			return nil, err
		}
	}
	ids := []*cri.IDMapping{{HostId: n * IDsPerPod, ContainerId: 0, Length: IDsPerPod}}
	return &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}, nil
}

// take assigns a range to a pod. The caller holds mu.
func (p *IDPool) take(uid string, inUse func() ([]*cri.IDMapping, error)) (uint32, error) {
	used := map[uint32]bool{}
	for _, n := range p.taken {
		used[n] = true
	}
	if p.lost[uid] {
		if n, found, err := p.regain(uid, used); found || err != nil {
			return n, err
		}
	}
	if inUse != nil {
		foreign, err := inUse()
		if err != nil {
			return 0, err
		}
		mark(used, foreign)
	}
	for n := p.first; n <= p.last; n++ {
		if used[n] {
			continue
		}
		m := []idMapping{{HostID: n * IDsPerPod, Length: IDsPerPod}}
		if err := atomicfile.SaveJSON(p.file(uid), idRecord{m, m}); err != nil {
			return 0, err
		}
		p.taken[uid] = n
		return n, nil
	}
	return 0, fmt.Errorf("all %d ranges of user IDs are taken", p.last-p.first+1)
}

// regain retries to read a record. found is false if the record has been removed meanwhile. The
// caller holds mu.
func (p *IDPool) regain(uid string, used map[uint32]bool) (n uint32, found bool, err error) {
	n, err = p.read(uid)
	if errors.Is(err, fs.ErrNotExist) {
		delete(p.lost, uid)
		return 0, false, nil
	}
	if err == nil && used[n] {
		err = errors.New("another pod has them now")
	}
	if err != nil {
		return 0, false, fmt.Errorf("the pod's user IDs are not known: %s: %w", p.file(uid), err)
	}
	delete(p.lost, uid)
	p.taken[uid] = n
	return n, true, nil
}

// mark marks the ranges that mappings overlap as used.
func mark(used map[uint32]bool, mappings []*cri.IDMapping) {
	for _, m := range mappings {
		if m.Length == 0 {
			continue
		}
		for n := uint64(m.HostId) / IDsPerPod; n <= (uint64(m.HostId)+uint64(m.Length)-1)/IDsPerPod; n++ {
			used[uint32(n)] = true
		}
	}
}

// Free releases the IDs of a pod that no longer runs. It is no error if the pod has none.
func (p *IDPool) Free(uid string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.taken[uid]; !ok && !p.lost[uid] {
		return nil
	}
	if err := os.Remove(p.file(uid)); err != nil && !os.IsNotExist(err) {
		return err
	}
	// Otherwise a power cut could bring the record back, after another pod got the IDs.
	if err := atomicfile.SyncDir(filepath.Dir(p.file(uid))); err != nil && !os.IsNotExist(err) {
		return err
	}
	delete(p.taken, uid)
	delete(p.lost, uid)
	return nil
}
