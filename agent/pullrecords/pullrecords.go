// Package pullrecords remembers with whose credentials images were pulled, so that a pod
// without them cannot use what another one has brought here (the kubelet's
// KubeletEnsureSecretPulledImages).
//
// A record is of an image of the runtime, and in it for each name that the image was
// pulled by: that every pod of this node may use it, since it needed no credentials or
// the node's, or the pull secrets that were good for it. A pod with one of
// these secrets, or with one of the same content, may use the image; any other has to pull
// it, and the registry decides.
//
// On disk, below the agent's root:
//
//	images/pulling/<hash of name>  a pull has begun: written before, removed after it,
//	                               so an image that came while an agent died is known
//	                               to be one that was pulled
//	images/pulled/<hash of ID>     a Record
//
// Names and hashes of secrets are in them, no secret is.
package pullrecords

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/keyring"
	"github.com/crisp-cri/crisp/internal/atomicfile"
)

// A Policy says for which images that are here credentials are asked for, by the
// kubelet's names.
type Policy string

const (
	NeverVerify            Policy = "NeverVerify"
	NeverVerifyPreloaded   Policy = "NeverVerifyPreloadedImages" // those that came by other ways than pulls of pods
	NeverVerifyAllowlisted Policy = "NeverVerifyAllowlistedImages"
	AlwaysVerify           Policy = "AlwaysVerify"
)

// Policies are all of them; the second is the default.
var Policies = []Policy{NeverVerify, NeverVerifyPreloaded, NeverVerifyAllowlisted, AlwaysVerify}

// mostSecrets is the number of secrets of an image from which on MayUse records no further
// ones, nor new contents of these.
const mostSecrets = 100

// A Record is what is known of an image.
type Record struct {
	ID      string            `json:"imageRef"` // the runtime's
	Updated time.Time         `json:"lastUpdatedTime"`
	Access  map[string]Access `json:"credentialMapping"` // by name, without tag and digest
}

// Access is which pods may use an image by a name.
type Access struct {
	Node    bool             `json:"nodePodsAccessible,omitempty"`
	Secrets []keyring.Source `json:"kubernetesSecrets,omitempty"`
}

// A Ledger keeps records. It is safe for use by all goroutines.
type Ledger struct {
	dir    string
	policy Policy
	listed []string // names of the policy NeverVerifyAllowlisted; "…/*" is all below

	mu      sync.Mutex
	pulling map[string]int // pulls under way, by name; guarded by mu, as the files are
}

// Open returns the Ledger in root.
func Open(root string, policy Policy, listed []string) (*Ledger, error) {
	l := &Ledger{dir: filepath.Join(root, "images"), policy: policy, listed: listed, pulling: map[string]int{}}
	for _, dir := range []string{"pulling", "pulled"} {
		if err := atomicfile.MakeDirs(filepath.Join(l.dir, dir), 0o700); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *Ledger) path(kind, name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(l.dir, kind, hex.EncodeToString(sum[:]))
}

// Begin notes that an image is about to be pulled.
func (l *Ledger) Begin(image string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := atomicfile.Write(l.path("pulling", image), []byte(image), 0o600); err != nil {
		return err
	}
	l.pulling[image]++
	return nil
}

// Failed notes that a pull has come to nothing.
func (l *Ledger) Failed(image string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.endLocked(image)
}

func (l *Ledger) endLocked(image string) error {
	if l.pulling[image]--; l.pulling[image] > 0 {
		return nil
	}
	delete(l.pulling, image)
	if err := os.Remove(l.path("pulling", image)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Done notes that an image was pulled and what it is to the runtime now; by is the
// secret that was good for it, nil if it was the node's credentials or none.
func (l *Ledger) Done(image, id string, by *keyring.Source) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.noteLocked(image, id, by); err != nil {
		return err // the pull under way stays noted: the image is one that was pulled
	}
	return l.endLocked(image)
}

func (l *Ledger) noteLocked(image, id string, by *keyring.Source) error {
	r, err := l.readLocked(id)
	if err != nil || r == nil { // one that cannot be read is begun anew
		r = &Record{ID: id, Access: map[string]Access{}}
	}
	name := keyring.Repository(image)
	a := r.Access[name]
	switch {
	case a.Node:
		return nil
	case by == nil:
		a = Access{Node: true}
	default:
		same := func(s keyring.Source) bool {
			return s.UID == by.UID && s.Namespace == by.Namespace && s.Name == by.Name
		}
		if i := slices.IndexFunc(a.Secrets, same); i < 0 {
			a.Secrets = append(slices.Clone(a.Secrets), *by)
		} else if a.Secrets[i].Hash == by.Hash {
			return nil
		} else {
			a.Secrets = slices.Clone(a.Secrets)
			a.Secrets[i] = *by
		}
	}
	r.Access[name], r.Updated = a, time.Now().UTC()
	return atomicfile.SaveJSON(l.path("pulled", id), r)
}

func (l *Ledger) readLocked(id string) (*Record, error) {
	r := &Record{}
	switch err := atomicfile.ReadJSON(l.path("pulled", id), r); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("record of image %s: %w", id, err)
	}
	if r.Access == nil {
		r.Access = map[string]Access{}
	}
	return r, nil
}

// MayUse reports whether a pod that has these secrets for an image may use it, which
// the runtime has under this ID. If not, the pod may pull it. An error is one of the
// disk; then nobody may.
func (l *Ledger) MayUse(image, id string, secrets []keyring.Source) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, err := l.readLocked(id)
	if err != nil {
		return false, err
	}
	known := r != nil
	if !known {
		_, err := os.Stat(l.path("pulling", image))
		if known = err == nil; err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	if !l.asks(image, known) {
		return true, nil
	}
	if r == nil {
		return false, nil
	}
	a := r.Access[keyring.Repository(image)]
	if a.Node {
		return true, nil
	}
	for _, has := range secrets {
		for _, good := range a.Secrets {
			sameContent := good.Hash != "" && good.Hash == has.Hash
			sameSecret := good.UID == has.UID && good.Namespace == has.Namespace && good.Name == has.Name
			if !sameContent && !sameSecret {
				continue
			}
			// A secret that was changed, or copied, is good from now on by itself.
			if len(a.Secrets) < mostSecrets {
				err = l.noteLocked(image, id, &has)
			}
			return true, err
		}
	}
	return false, nil
}

// asks reports whether the policy asks for credentials, of an image that pods have
// pulled or not.
func (l *Ledger) asks(image string, pulled bool) bool {
	switch l.policy {
	case NeverVerify:
		return false
	case AlwaysVerify:
		return true
	case NeverVerifyAllowlisted:
		name := keyring.Repository(image)
		return !slices.ContainsFunc(l.listed, func(listed string) bool {
			if below, all := strings.CutSuffix(listed, "/*"); all {
				return strings.HasPrefix(name, keyring.Repository(below)+"/") || strings.HasPrefix(name, below+"/")
			}
			return name == keyring.Repository(listed)
		})
	}
	return pulled
}

// Prune forgets the images that the runtime does not have any more, but for those of
// which something was noted since.
func (l *Ledger) Prune(has func(id string) bool, since time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	dir := filepath.Join(l.dir, "pulled")
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var r Record
		if atomicfile.ReadJSON(path, &r) != nil || !r.Updated.Before(since) || has(r.ID) {
			continue
		}
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
