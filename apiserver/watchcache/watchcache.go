// Package watchcache numbers the changes of the objects that the agent serves, as the watch
// cache of an API server does, so that reads, lists, watches and preconditions are consistent.
// There is one counter for the node; an object's resource version is the number of its last
// change.
//
// Sources need not report what has changed. They replace objects and never modify them, so the
// cache compares the parts of an object, which are pointers, with those that it saw last. Only
// if a part differs does it make the object again and compare its JSON.
//
//	sources ── Item{Key, Parts} ──▶ entries in the order of their last change ──▶ watchers
//
// A watcher reads the entries from the last one back to the version that it has seen, so the
// cost depends on the number of changes. Several changes of an object between two reads count as
// one. The cache keeps the last maxGone removed objects of a kind as tombstones. A watcher with
// an older version gets ErrExpired and has to list again, as does one with a version of an
// earlier agent: versions start at the time.
package watchcache

import (
	"bytes"
	"container/list"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
)

// maxGone is the maximum number of tombstones of each kind.
const maxGone = 500

// ErrExpired says that the changes since a version are no longer known. The message is
// Kubernetes' (410 Gone).
var ErrExpired = errors.New("too old resource version")

// An Item is an object in its source.
type Item struct {
	Key string // manifest.Key
	// Parts are the parts of the object: pointers and other comparable values. While they equal
	// the previous ones, the object is unchanged.
	Parts [3]any
	// Make makes the object, which the cache then owns.
	Make func() manifest.Object
}

// A Source has the objects. The cache calls it under its lock.
type Source interface {
	Items(kind string) []Item // all objects of a kind, each key once
	Item(kind, key string) (Item, bool)
}

// A Cache is safe for concurrent use. Its objects are shared and read-only.
type Cache struct {
	source Source

	mu      sync.Mutex // also held while the source is read, so that no older list is compared after a newer one
	version uint64     // of the last change; guarded by mu
	epoch   uint64     // the version at which the cache started
	kinds   map[string]*kind

	pokeMu sync.Mutex
	pokes  uint64        // guarded by pokeMu
	poked  chan struct{} // closed by the next Poke; nil if nothing waits; guarded by pokeMu
}

// A kind has the objects of one kind.
type kind struct {
	entries map[string]*list.Element // of *entry, by key; without tombstones
	changes list.List                // of *entry, by version
	gone    []*list.Element          // the tombstones in changes, oldest first
	floor   uint64                   // changes up to this version may be forgotten
	read    uint64                   // the number of pokes when the whole kind was last read, plus one; 0 for never
}

// An entry is an object or a tombstone.
type entry struct {
	version uint64 // of the last change
	created uint64 // version when the object appeared
	labeled uint64 // version when its labels last changed
	gone    bool
	parts   [3]any
	object  manifest.Object // with version as its resource version
}

// A Change says what happened to an object since a version.
type Change struct {
	New       bool // it did not exist at that version
	Relabeled bool // it had other labels at that version, or did not exist
	Deleted   bool
	Object    manifest.Object // its last state, if it is deleted
}

// New returns a Cache whose versions are greater than those of any earlier one: they start at
// the time in microseconds, and no node has as many changes.
func New(source Source) *Cache {
	now := uint64(time.Now().UnixMicro())
	return &Cache{source: source, version: now, epoch: now, kinds: map[string]*kind{}}
}

// Poke reports that something may have changed. It does not block.
func (c *Cache) Poke() {
	c.pokeMu.Lock()
	defer c.pokeMu.Unlock()
	c.pokes++
	if c.poked != nil {
		close(c.poked)
		c.poked = nil
	}
}

// Poked returns a channel that the next Poke closes.
func (c *Cache) Poked() <-chan struct{} {
	c.pokeMu.Lock()
	defer c.pokeMu.Unlock()
	if c.poked == nil {
		c.poked = make(chan struct{})
	}
	return c.poked
}

func (c *Cache) countPokes() uint64 {
	c.pokeMu.Lock()
	defer c.pokeMu.Unlock()
	return c.pokes
}

// Get returns the current object of this key, nil if it does not exist.
func (c *Cache) Get(kind, key string) manifest.Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.kindLocked(kind)
	item, ok := c.source.Item(kind, key)
	if !ok {
		if el := k.entries[key]; el != nil {
			c.buryLocked(k, key, el)
		}
		return nil
	}
	return c.setLocked(k, item)
}

// List returns the objects of a kind, in the source's order, and the version of the list.
func (c *Cache) List(kind string) ([]manifest.Object, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readLocked(c.kindLocked(kind), kind), c.version
}

// Since returns the changes of a kind after a version, in order, and the version that they lead
// to. Version 0 is the beginning. The error is ErrExpired, for a version that is too old or from
// another Cache. Since reads the source if there was a Poke since its last read.
func (c *Cache) Since(kind string, version uint64) ([]Change, uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.kindLocked(kind)
	if k.read <= c.countPokes() {
		c.readLocked(k, kind)
	}
	if version != 0 && version < k.floor || version > c.version {
		return nil, 0, ErrExpired
	}
	var changes []Change
	for el := k.changes.Back(); el != nil; el = el.Prev() {
		e := el.Value.(*entry)
		if e.version <= version {
			break
		}
		changes = append(changes, Change{New: e.created > version, Relabeled: e.labeled > version, Deleted: e.gone, Object: e.object})
	}
	slices.Reverse(changes)
	return changes, c.version, nil
}

func (c *Cache) kindLocked(name string) *kind {
	k := c.kinds[name]
	if k == nil {
		k = &kind{entries: map[string]*list.Element{}, floor: c.epoch}
		c.kinds[name] = k
	}
	return k
}

// readLocked reads all objects of a kind.
func (c *Cache) readLocked(k *kind, name string) []manifest.Object {
	k.read = c.countPokes() + 1 // counted first, so that a Poke meanwhile causes another read
	items := c.source.Items(name)
	there := make(map[string]bool, len(items))
	for _, item := range items {
		there[item.Key] = true
	}
	for key, el := range k.entries {
		if !there[key] {
			c.buryLocked(k, key, el)
		}
	}
	objects := make([]manifest.Object, len(items))
	for i, item := range items {
		objects[i] = c.setLocked(k, item)
	}
	return objects
}

// setLocked compares an item with its entry, and returns the object with its version.
func (c *Cache) setLocked(k *kind, item Item) manifest.Object {
	el := k.entries[item.Key]
	if el != nil && el.Value.(*entry).parts == item.Parts {
		return el.Value.(*entry).object
	}
	object := item.Make()
	if el != nil {
		e := el.Value.(*entry)
		if e.object.GetUID() != object.GetUID() {
			// Clients identify objects by name: they must see the deletion of the old one first.
			c.buryLocked(k, item.Key, el)
			el = nil
		} else if object.SetResourceVersion(e.object.GetResourceVersion()); sameText(e.object, object) {
			e.parts = item.Parts
			return e.object
		}
	}
	c.version++
	object.SetResourceVersion(strconv.FormatUint(c.version, 10))
	next := &entry{version: c.version, created: c.version, labeled: c.version, parts: item.Parts, object: object}
	if el == nil {
		k.entries[item.Key] = k.changes.PushBack(next)
		return object
	}
	last := el.Value.(*entry)
	next.created = last.created
	if maps.Equal(last.object.GetLabels(), object.GetLabels()) {
		next.labeled = last.labeled
	}
	el.Value = next
	k.changes.MoveToBack(el)
	return object
}

// buryLocked turns an entry into a tombstone.
func (c *Cache) buryLocked(k *kind, key string, el *list.Element) {
	e := el.Value.(*entry)
	c.version++
	last := e.object.DeepCopyObject().(manifest.Object)
	last.SetResourceVersion(strconv.FormatUint(c.version, 10))
	el.Value = &entry{version: c.version, created: e.created, labeled: e.labeled, gone: true, object: last}
	k.changes.MoveToBack(el)
	delete(k.entries, key)
	if k.gone = append(k.gone, el); len(k.gone) > maxGone {
		k.floor = k.changes.Remove(k.gone[0]).(*entry).version
		k.gone = slices.Delete(k.gone, 0, 1)
	}
}

// sameText reports whether clients see no difference between two objects.
func sameText(a, b manifest.Object) bool {
	x, err := json.Marshal(a)
	if err != nil {
		return false
	}
	y, err := json.Marshal(b)
	return err == nil && bytes.Equal(x, y)
}
