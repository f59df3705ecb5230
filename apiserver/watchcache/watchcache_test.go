package watchcache

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fake is a Source of ConfigMaps. It counts the reads and the objects made.
type fake struct {
	objects []*v1.ConfigMap
	read    int // number of reads of all objects
	made    int
}

// set makes it a source of "name@uid=value ...". Objects that are already in the source are kept.
func (f *fake) set(text string) {
	var next []*v1.ConfigMap
	for word := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(word, "=")
		name, uid, _ := strings.Cut(name, "@")
		o := &v1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap"}, Data: map[string]string{"v": value}}
		o.Namespace, o.Name, o.UID = "default", name, types.UID(uid)
		if i := slices.IndexFunc(f.objects, func(old *v1.ConfigMap) bool {
			return old.Name == name && old.UID == o.UID && old.Data["v"] == value
		}); i >= 0 {
			o = f.objects[i]
		}
		next = append(next, o)
	}
	f.objects = next
}

func (f *fake) item(o *v1.ConfigMap) Item {
	return Item{Key: manifest.Key(o), Parts: [3]any{o}, Make: func() manifest.Object { f.made++; return o.DeepCopy() }}
}

func (f *fake) Items(string) []Item {
	f.read++
	var items []Item
	for _, o := range f.objects {
		items = append(items, f.item(o))
	}
	return items
}

func (f *fake) Item(_, key string) (Item, bool) {
	for _, o := range f.objects {
		if manifest.Key(o) == key {
			return f.item(o), true
		}
	}
	return Item{}, false
}

// texts formats changes as "+a@1=x ~a@1=y -a@1".
func texts(changes []Change) string {
	var words []string
	for _, c := range changes {
		sign := "~"
		switch {
		case c.Deleted:
			sign = "-"
		case c.New:
			sign = "+"
		}
		words = append(words, fmt.Sprintf("%s%s@%s=%s", sign, c.Object.GetName(), c.Object.GetUID(), c.Object.(*v1.ConfigMap).Data["v"]))
	}
	return strings.Join(words, " ")
}

// A watcher gets all changes since its last look, once and in order. Informers identify objects by
// name, so the end of an object comes before a new one of the same name.
func TestSince(t *testing.T) {
	f := &fake{}
	c := New(f)
	_, version := c.List("ConfigMap")
	begin := version
	for _, step := range []struct{ now, want string }{
		{"a@1=x b@2=x", "+a@1=x +b@2=x"},
		{"a@1=x b@2=x", ""},
		{"a@1=y b@2=x", "~a@1=y"},
		{"b@2=z a@1=y", "~b@2=z"},
		{"a@1=w b@2=z c@3=x", "~a@1=w +c@3=x"},
		{"a@4=w b@2=z", "-a@1=w -c@3=x +a@4=w"},
		{"b@2=z a@4=w", ""},
		{"", "-a@4=w -b@2=z"},
	} {
		f.set(step.now)
		c.Poke()
		changes, next, err := c.Since("ConfigMap", version)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Fields(texts(changes))
		ends := 0
		for ends < len(got) && strings.HasPrefix(got[ends], "-") {
			ends++
		}
		slices.Sort(got[:ends]) // objects that end at once may come in any order
		if text := strings.Join(got, " "); text != step.want {
			t.Errorf("%q: got %q, want %q", step.now, text, step.want)
		}
		last := version
		for _, change := range changes {
			v, err := strconv.ParseUint(change.Object.GetResourceVersion(), 10, 64)
			if err != nil || v <= last || v > next {
				t.Errorf("%q: %s has the version %s, after %d and up to %d", step.now, change.Object.GetName(), change.Object.GetResourceVersion(), last, next)
			}
			last = v
		}
		version = next
	}
	// A watcher that has not looked meanwhile gets only the ends.
	changes, _, err := c.Since("ConfigMap", begin)
	if err != nil || slices.ContainsFunc(changes, func(c Change) bool { return !c.Deleted }) {
		t.Errorf("%s, %v", texts(changes), err)
	}
}

// An unchanged object is neither read nor copied again for each watcher. An equal new object is not
// a change.
func TestCost(t *testing.T) {
	f := &fake{}
	f.set("a@1=x b@2=x c@3=x")
	c := New(f)
	_, version := c.List("ConfigMap")
	f.set("a@1=x b@2=y c@3=x")
	c.Poke()
	f.read, f.made = 0, 0
	for range 10 {
		if changes, _, err := c.Since("ConfigMap", version); err != nil || texts(changes) != "~b@2=y" {
			t.Fatalf("%s, %v", texts(changes), err)
		}
	}
	if f.read != 1 || f.made != 1 {
		t.Errorf("ten watchers of one change read all %d times and made %d objects", f.read, f.made)
	}
	if o := c.Get("ConfigMap", "configmap default/a"); o == nil || f.read != 1 || f.made != 1 {
		t.Errorf("one object is %v: all were read %d times, %d made", o, f.read, f.made)
	}
	before, version := c.List("ConfigMap")
	for i := range f.objects {
		f.objects[i] = f.objects[i].DeepCopy()
	}
	after, now := c.List("ConfigMap")
	if version != now || !slices.Equal(before, after) {
		t.Errorf("objects with the same text have changed: %d, %d", version, now)
	}
}

// A single object can be read before all are, and the next watch sends it.
func TestGet(t *testing.T) {
	f := &fake{}
	f.set("a@1=x b@2=x")
	c := New(f)
	const key = "configmap default/b"
	first := c.Get("ConfigMap", key)
	_, version := c.List("ConfigMap")
	f.set("a@1=x b@2=y")
	second := c.Get("ConfigMap", key)
	if first == nil || second == nil || first.GetResourceVersion() == second.GetResourceVersion() {
		t.Fatalf("%v, then %v", first, second)
	}
	f.set("a@1=x b@9=y")
	c.Get("ConfigMap", key)
	if changes, _, err := c.Since("ConfigMap", version); err != nil || texts(changes) != "-b@2=y +b@9=y" {
		t.Errorf("got %s, %v", texts(changes), err)
	}
	f.set("a@1=x")
	if o := c.Get("ConfigMap", key); o != nil {
		t.Errorf("%v is there", o)
	}
	if changes, _, err := c.Since("ConfigMap", version); err != nil || texts(changes) != "-b@2=y -b@9=y" {
		t.Errorf("got %s, %v", texts(changes), err)
	}
}

// A watcher that could have missed the end of an object must list again: one older than the cache's
// history, one of an earlier agent, and one without a valid version.
func TestExpired(t *testing.T) {
	f := &fake{}
	c := New(f)
	var words []string
	for i := range maxGone + 1 {
		words = append(words, fmt.Sprintf("a%d@%d=x", i, i))
	}
	f.set(strings.Join(words, " "))
	_, version := c.List("ConfigMap")
	f.set(words[0])
	c.Poke()
	if changes, _, err := c.Since("ConfigMap", version); err != nil || len(changes) != maxGone {
		t.Errorf("%d are sent, %v; want all of %d", len(changes), err, maxGone)
	}
	f.set("")
	c.Poke()
	for name, version := range map[string]uint64{"before what is remembered": version, "an earlier agent's": c.epoch - 1, "none": 1 << 63} {
		if _, _, err := c.Since("ConfigMap", version); !errors.Is(err, ErrExpired) {
			t.Errorf("%s: %v, want %v", name, err, ErrExpired)
		}
	}
	if k := c.kinds["ConfigMap"]; k.changes.Len() != maxGone || len(k.entries) != 0 {
		t.Errorf("%d entries, %d of them there", k.changes.Len(), len(k.entries))
	}
	if changes, now, err := c.Since("ConfigMap", 0); err != nil || len(changes) != maxGone || now != c.version {
		t.Errorf("from the beginning: %d, %v", len(changes), err)
	}
}

// A waiting watcher is woken by the next poke, not by an earlier one.
func TestPoke(t *testing.T) {
	c := New(&fake{})
	c.Poke()
	poked := c.Poked()
	select {
	case <-poked:
		t.Fatal("woken by a poke that was before")
	default:
	}
	c.Poke()
	<-poked // blocks if the watcher is not woken
}
