package image

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/docker/reference"
)

// recordKind is the kind of an image's record; the record's id is the image ID without
// "sha256:". It is not "images": the store itself may have that directory.
const recordKind = "imagerecords"

// A record is an image on disk.
type record struct {
	Config      []byte            // as received: its digest is the ID; of an artifact, its manifest
	Layers      []digest.Digest   // see blob.Blob.Identity
	Dirs        []layer.DirAttr   `json:",omitempty"` // see layer.Store.Inherit
	Artifact    bool              `json:",omitempty"`
	Encrypted   bool              `json:",omitempty"` // was pulled encrypted, and never otherwise
	Sealed      []string          `json:",omitempty"` // those of Digests and Instances with encrypted layers
	Proofs      []registry.Proof  `json:",omitempty"` // by manifest, those that were signed
	Annotations map[string]string `json:",omitempty"` // of the manifest, see Image
	Tags        []string
	Digests     []string
	Instances   []string `json:",omitempty"` // like Digests, with the digest of the one manifest in the list that was pulled
	Created     time.Time
	Updated     time.Time // when it last got a name
}

// same reports whether r and s are equal apart from the time.
func (r record) same(s record) bool {
	s.Updated = r.Updated
	return reflect.DeepEqual(r, s)
}

// An entry is an image in memory. It never changes: a change makes a new one.
type entry struct {
	Image
	record record
	layers []*layer.Layer
}

// A catalog holds all images at one moment. It never changes either, so it is read without a
// lock.
type catalog struct {
	byID   map[string]*entry // without "sha256:"
	byName map[string]*entry // by tag, and by digest
}

func newCatalog(entries map[string]*entry) *catalog {
	c := &catalog{byID: entries, byName: make(map[string]*entry)}
	for _, e := range entries {
		for _, name := range e.names() {
			c.byName[name] = e
		}
	}
	return c
}

// with returns the catalog in which e replaces the entry with the same ID.
func (c *catalog) with(e *entry) *catalog {
	entries := maps.Clone(c.byID)
	entries[e.hex()] = e
	return newCatalog(entries)
}

func (c *catalog) without(e *entry) *catalog {
	entries := maps.Clone(c.byID)
	delete(entries, e.hex())
	return newCatalog(entries)
}

func (e *entry) hex() string { return strings.TrimPrefix(e.ID, "sha256:") }

// needsKey reports whether each pull by digest, a name of e, needs the node's key.
func (e *entry) needsKey(digest string) bool {
	return e.record.Encrypted || slices.Contains(e.record.Sealed, digest)
}

func (e *entry) names() []string { return slices.Concat(e.Tags, e.Digests, e.record.Instances) }

// newEntry makes an entry for the record r, which is on disk, and takes over layers.
func (s *Store) newEntry(id string, r record, layers []*layer.Layer) (*entry, error) {
	e := &entry{record: r, layers: layers}
	e.ID = "sha256:" + id
	e.Tags, e.Digests, e.CreatedAt = r.Tags, r.Digests, r.Created
	e.Annotations = r.Annotations
	if e.Artifact = r.Artifact; !e.Artifact {
		if err := json.Unmarshal(r.Config, &e.Config); err != nil {
			return nil, fmt.Errorf("config of image %s: %w", id, err)
		}
	}
	e.Size = uint64(len(r.Config))
	for _, l := range layers {
		e.Size += l.Size()
	}
	e.Pinned = s.pinned.match(append(e.names(), e.ID))
	return e, nil
}

// Reconfigure changes the settings. Pulls under way keep the old ones.
func (s *Store) Reconfigure(n Settings) {
	if n.MaxParallel <= 0 {
		n.MaxParallel = 4
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settings.Store(&n)
	s.pinned = newPinning(n.Pinned)
	if c := s.catalog.Load(); c != nil {
		entries := maps.Clone(c.byID)
		for id, e := range entries {
			changed := *e
			changed.Pinned = s.pinned.match(append(e.names(), e.ID))
			entries[id] = &changed
		}
		s.catalog.Store(newCatalog(entries))
	}
	for _, text := range slices.Concat(registry.CheckFiles(n.Settings), blob.CheckKeys(n.KeysDir)) {
		s.log.Warn("files about images cannot be used", "err", text)
	}
	s.registries.Reconfigure(n.Settings)
}

// now returns the current settings.
func (s *Store) now() *Settings { return s.settings.Load() }

// List returns all images, in the order of their IDs.
func (s *Store) List() []Image {
	c := s.catalog.Load()
	images := make([]Image, 0, len(c.byID))
	for _, id := range slices.Sorted(maps.Keys(c.byID)) {
		images = append(images, c.byID[id].Image)
	}
	return images
}

// put publishes the image n under its ID and its tags and digests, if any. An older image that has
// one of the tags loses it. The layers are committed, and retained for put, which takes them over
// or releases them.
func (s *Store) put(n record, layers []*layer.Layer) (_ Image, err error) {
	spare := layers
	defer func() {
		if rerr := s.layers.ReleaseAll(spare); err == nil && rerr != nil {
			s.log.Warn("unneeded layer was not removed", "err", rerr)
		}
	}()
	id := digest.FromBytes(n.Config).Encoded()

	s.mu.Lock()
	defer s.mu.Unlock()
	r := n
	r.Updated = time.Now()
	old, ok := s.catalog.Load().byID[id]
	switch {
	case !ok:
		r.Created = r.Updated
		for _, l := range layers {
			r.Layers = append(r.Layers, l.DiffID)
		}
	case old.Artifact != n.Artifact:
		return Image{}, fault.Invalid.Errorf("image %s was an artifact and an image", id)
	default:
		r, layers = old.record, old.layers
		r.Updated = time.Now()
		r.Encrypted = r.Encrypted && n.Encrypted
		r.Sealed = merge(r.Sealed, n.Sealed)
		r.Proofs = mergeProofs(r.Proofs, n.Proofs)
	}
	r.Tags = merge(r.Tags, n.Tags)
	r.Digests = merge(r.Digests, n.Digests)
	r.Instances = merge(r.Instances, n.Instances)
	if ok && old.record.same(r) {
		return old.Image, nil
	}
	e, err := s.publish(id, r, layers)
	if err != nil {
		return Image{}, err
	}
	if !ok {
		spare = nil
	}
	return e.Image, s.untag(e, n.Tags)
}

// mergeProofs returns all signatures of each manifest, the fresh ones first, which stay if there are
// too many. A manifest can be in several repositories, each with signatures for its name: whoever
// can write to one cannot displace those of another.
func mergeProofs(old, fresh []registry.Proof) []registry.Proof {
	var all []registry.Proof
	for _, p := range slices.Concat(fresh, old) {
		i := slices.IndexFunc(all, func(q registry.Proof) bool {
			return q.Repository == p.Repository && q.Digest() == p.Digest()
		})
		if i < 0 {
			all = append(all, p)
			continue
		}
		known := slices.Clone(all[i].Signatures)
		for _, sig := range p.Signatures {
			if len(known) < registry.MaxSignatures && !slices.ContainsFunc(known, func(k []byte) bool { return bytes.Equal(k, sig) }) {
				known = append(known, sig)
			}
		}
		all[i].Signatures = known
	}
	return all
}

// untag takes tags away from all images but e. A crash before it leaves two
// images with one tag; Open gives it to the one that got it last.
func (s *Store) untag(e *entry, tags []string) error {
	for id, old := range s.catalog.Load().byID {
		if old == e || !overlap(old.Tags, tags) {
			continue
		}
		r := old.record
		r.Tags = slices.DeleteFunc(slices.Clone(r.Tags), func(t string) bool { return slices.Contains(tags, t) })
		if _, err := s.publish(id, r, old.layers); err != nil {
			return err
		}
	}
	return nil
}

// publish saves the record of an image and makes it known; the caller holds mu.
func (s *Store) publish(id string, r record, layers []*layer.Layer) (*entry, error) {
	e, err := s.newEntry(id, r, layers)
	if err != nil {
		return nil, err
	}
	if err := s.o.Records.Save(recordKind, id, r); err != nil {
		return nil, fmt.Errorf("save image %s: %w", id, err)
	}
	s.catalog.Store(s.catalog.Load().with(e))
	return e, nil
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// merge returns the sorted union.
func merge(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// Tag adds a tag to the image that ref names; an image that has the tag loses it.
func (s *Store) Tag(ref, tag string) (Image, error) {
	name, err := reference.ParseDockerRef(tag)
	if err != nil {
		return Image{}, fault.Invalid.Errorf("image name %q: %w", tag, err)
	}
	if _, digested := name.(reference.Digested); digested {
		return Image{}, fault.Invalid.Errorf("image name %q: a tag cannot be a digest", tag)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.find(ref)
	if err != nil {
		return Image{}, err
	}
	if slices.Contains(e.Tags, name.String()) {
		return e.Image, nil
	}
	r := e.record
	r.Tags, r.Updated = merge(r.Tags, []string{name.String()}), time.Now()
	next, err := s.publish(e.hex(), r, e.layers)
	if err != nil {
		return Image{}, err
	}
	return next.Image, s.untag(next, []string{name.String()})
}

// pinning matches the names of pinned images.
type pinning []*regexp.Regexp

func newPinning(patterns []string) pinning {
	var p pinning
	for _, pattern := range patterns {
		if pattern == "" {
			continue
		}
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		p = append(p, regexp.MustCompile("^"+strings.Join(parts, ".*")+"$"))
	}
	return p
}

// match reports whether a pattern matches one of an image's names: in full, without tag or
// digest, or as Docker shortens it.
func (p pinning) match(names []string) bool {
	for _, full := range names {
		forms := []string{full}
		if name, err := reference.ParseDockerRef(full); err == nil {
			forms = append(forms, name.Name(), reference.FamiliarString(name), reference.FamiliarName(name))
		}
		for _, form := range forms {
			for _, re := range p {
				if re.MatchString(form) {
					return true
				}
			}
		}
	}
	return false
}
