package pull

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

	"github.com/crisp-cri/crisp/internal/atomicfile"
)

// A Policy says which images on this node a pod needs credentials for. The names are the
// kubelet's (imagePullCredentialsVerificationPolicy).
type Policy string

const (
	NeverVerify            Policy = "NeverVerify"
	NeverVerifyPreloaded   Policy = "NeverVerifyPreloadedImages" // preloaded: not pulled for a pod
	NeverVerifyAllowlisted Policy = "NeverVerifyAllowlistedImages"
	AlwaysVerify           Policy = "AlwaysVerify"
)

// Policies are all policies; the second is the default.
var Policies = []Policy{NeverVerify, NeverVerifyPreloaded, NeverVerifyAllowlisted, AlwaysVerify}

// mostSecrets bounds the secrets that MayUse records for an image: beyond it MayUse adds neither
// secrets nor new contents of recorded ones.
const mostSecrets = 100

// A Record says which pods may use an image.
type Record struct {
	ID      string            `json:"imageRef"` // the runtime's
	Updated time.Time         `json:"lastUpdatedTime"`
	Access  map[string]Access `json:"credentialMapping"` // by name, without tag and digest
}

// Access says which pods may use an image by a name.
type Access struct {
	Node    bool     `json:"nodePodsAccessible,omitempty"` // all pods of this node
	Secrets []Source `json:"kubernetesSecrets,omitempty"`  // pods with one of these pull secrets
}

// A Ledger records with whose credentials images were pulled, so that a pod without credentials
// cannot use an image that another pod has pulled (the kubelet's KubeletEnsureSecretPulledImages).
// It is safe for concurrent use.
//
// There is a record for each image of the runtime. For each name by which the image was pulled,
// it says either that every pod of this node may use the image, since it needed no credentials
// or the node's, or which pull secrets gave access. A pod with one of these secrets, or with a
// secret of the same content, may use the image; any other pod has to pull it, and the registry
// decides.
//
// On disk, below the agent's root:
//
//	images/pulling/<hash of name>  a pull has begun: written before the pull and removed
//	                               after it, so that an image that arrives while the
//	                               agent is killed counts as pulled
//	images/pulled/<hash of ID>     a Record
//
// They contain names and hashes of secrets, but no secrets.
type Ledger struct {
	dir    string
	policy Policy
	listed []string // images of NeverVerifyAllowlisted; "a/b/*" is every image below a/b

	mu      sync.Mutex
	made    bool           // the directories; guarded by mu
	pulling map[string]int // number of pulls in progress, by name; guarded by mu, as the files are
}

// OpenLedger returns the Ledger in root, the agent's directory. listed are the images of
// NeverVerifyAllowlisted.
func OpenLedger(root string, policy Policy, listed []string) (*Ledger, error) {
	l := &Ledger{dir: filepath.Join(root, "images"), policy: policy, listed: listed, pulling: map[string]int{}}
	_ = l.makeDirsLocked() // on a full disk the first record tries again
	return l, nil
}

func (l *Ledger) makeDirsLocked() error {
	if l.made {
		return nil
	}
	for _, dir := range []string{"pulling", "pulled"} {
		if err := atomicfile.MakeDirs(filepath.Join(l.dir, dir), 0o700); err != nil {
			return err
		}
	}
	l.made = true
	return nil
}

func (l *Ledger) path(kind, name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(l.dir, kind, hex.EncodeToString(sum[:]))
}

// Begin records that an image is about to be pulled.
func (l *Ledger) Begin(image string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.makeDirsLocked(); err != nil {
		return err
	}
	if err := atomicfile.Write(l.path("pulling", image), []byte(image), 0o600); err != nil {
		return err
	}
	l.pulling[image]++
	return nil
}

// Failed records that a pull has failed.
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

// Done records that an image was pulled and has this ID in the runtime. by is the pull secret
// that gave access, nil if it was the node's credentials or none were needed.
func (l *Ledger) Done(image, id string, by *Source) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.noteLocked(image, id, by); err != nil {
		return err // the file in pulling stays: the image counts as pulled
	}
	return l.endLocked(image)
}

func (l *Ledger) noteLocked(image, id string, by *Source) error {
	r, err := l.readLocked(id)
	if err != nil || r == nil { // a record that cannot be read is replaced
		r = &Record{ID: id, Access: map[string]Access{}}
	}
	name := Repository(image)
	a := r.Access[name]
	switch {
	case a.Node:
		return nil
	case by == nil:
		a = Access{Node: true}
	default:
		same := func(s Source) bool {
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
	if err := l.makeDirsLocked(); err != nil {
		return err
	}
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

// MayUse reports whether a pod with these pull secrets for an image may use it without a pull.
// The runtime has the image under this ID. An error means that a record could not be read or
// written; then the pod may not use the image.
func (l *Ledger) MayUse(image, id string, secrets []Source) (bool, error) {
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
	a := r.Access[Repository(image)]
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
			// The current content of the secret also gives access from now on.
			if len(a.Secrets) < mostSecrets {
				err = l.noteLocked(image, id, &has)
			}
			return true, err
		}
	}
	return false, nil
}

// asks reports whether the policy requires credentials for an image. pulled says whether it was
// pulled for a pod.
func (l *Ledger) asks(image string, pulled bool) bool {
	switch l.policy {
	case NeverVerify:
		return false
	case AlwaysVerify:
		return true
	case NeverVerifyAllowlisted:
		name := Repository(image)
		return !slices.ContainsFunc(l.listed, func(listed string) bool {
			if below, all := strings.CutSuffix(listed, "/*"); all {
				return strings.HasPrefix(name, Repository(below)+"/") || strings.HasPrefix(name, below+"/")
			}
			return name == Repository(listed)
		})
	}
	return pulled
}

// Prune removes the records of images that the runtime no longer has, unless they were updated
// since the given time.
func (l *Ledger) Prune(has func(id string) bool, since time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	dir := filepath.Join(l.dir, "pulled")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was pulled
	}
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
