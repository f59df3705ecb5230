package api

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/notify"
)

// A view numbers the changes of all objects, so that a list and a watch that
// follows it fit together. The number of its last change is an object's resource
// version. It looks at the objects when it is asked or poked and
// compares them with what it saw last: the sources of objects need not know.
type view struct {
	server *Server
	hub    notify.Hub[struct{}]

	mu    sync.Mutex
	seq   uint64                      // of the last change; guarded by mu
	seen  map[string]map[string]entry // kind → key → as last seen; guarded by mu
	gone  []change                    // objects that are no more, oldest first; guarded by mu
	floor uint64                      // changes up to here may be forgotten; guarded by mu
}

type entry struct {
	seq    uint64
	since  uint64 // when it came
	text   string
	object manifest.Object // with seq as its resource version
}

type change struct {
	kind, key string
	seq       uint64
	came      bool // it is new
	deleted   bool
	object    manifest.Object
}

// mostGone is how many removed objects are remembered for watchers.
const mostGone = 1000

func (v *view) poke() {
	if v.hub.Heard() {
		v.hub.Publish(struct{}{})
	}
}

// list returns the objects of a kind and the number of the last change.
func (v *view) list(kind string) ([]manifest.Object, uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	objects := v.takeLocked(kind)
	list := make([]manifest.Object, 0, len(objects))
	for _, o := range objects {
		if e, ok := v.seen[kind][entryKey(o)]; ok {
			list = append(list, e.object)
		}
	}
	return list, v.seq
}

func entryKey(o manifest.Object) string {
	return o.GetNamespace() + "/" + o.GetName() + "/" + string(o.GetUID())
}

// takeLocked compares the objects of a kind with what was seen last, and returns
// them. They are listed under the lock: an older list must not be compared after a
// newer one, or what has just come would be told as gone.
func (v *view) takeLocked(kind string) []manifest.Object {
	objects := v.server.list(kind)
	if v.seen == nil {
		v.seen = map[string]map[string]entry{}
		// More than the number of any change that an earlier agent has told of.
		v.seq = uint64(time.Now().UnixMicro())
		v.floor = v.seq
	}
	old, now := v.seen[kind], map[string]entry{}
	there := map[string]bool{}
	for _, o := range objects {
		there[entryKey(o)] = true
	}
	// First what has gone: clients know objects by their names, and one that came
	// in the place of another must not be taken for gone.
	for key, e := range old {
		if !there[key] {
			v.seq++
			last := e.object.DeepCopyObject().(manifest.Object)
			last.SetResourceVersion(strconv.FormatUint(v.seq, 10))
			v.gone = append(v.gone, change{kind: kind, key: key, seq: v.seq, deleted: true, object: last})
		}
	}
	for _, o := range objects {
		key := entryKey(o)
		data, err := json.Marshal(o)
		if err != nil {
			continue
		}
		e, known := old[key]
		if !known || e.text != string(data) {
			v.seq++
			since := e.since
			if !known {
				since = v.seq
			}
			o = o.DeepCopyObject().(manifest.Object)
			o.SetResourceVersion(strconv.FormatUint(v.seq, 10))
			e = entry{v.seq, since, string(data), o}
		}
		now[key] = e
	}
	if n := len(v.gone) - mostGone; n > 0 {
		v.floor = v.gone[n-1].seq
		v.gone = slices.Delete(v.gone, 0, n)
	}
	v.seen[kind] = now
	return objects
}

// since returns the changes of a kind after the one of this number, in order.
func (v *view) since(kind string, seq uint64) ([]change, uint64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.takeLocked(kind)
	if seq != 0 && seq < v.floor || seq > v.seq {
		return nil, 0, errExpired
	}
	var changes []change
	for key, e := range v.seen[kind] {
		if e.seq > seq {
			changes = append(changes, change{kind: kind, key: key, seq: e.seq, came: e.since > seq, object: e.object})
		}
	}
	for _, c := range v.gone {
		if c.kind == kind && c.seq > seq {
			changes = append(changes, c)
		}
	}
	slices.SortFunc(changes, func(a, b change) int {
		if a.seq != b.seq {
			return cmp.Compare(a.seq, b.seq)
		}
		return strings.Compare(a.key, b.key)
	})
	return changes, v.seq, nil
}
