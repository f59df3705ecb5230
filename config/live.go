package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// reloadable maps the keys that a reload changes to what the change affects. Any other change
// requires a restart of crispd, which containers do not notice. A name that ends with a dot
// means all keys below it.
var reloadable = map[string]string{
	"apparmor_profile":                       "containers made from then on",
	"cdi.spec_dirs":                          "containers made from then on",
	"default_capabilities":                   "containers made from then on",
	"device_ownership_from_security_context": "containers made from then on",
	"handlers.":                              "sandboxes and containers made from then on",
	"hooks_dir":                              "containers made from then on",
	"image.":                                 "pulls that begin from then on; the list of pinned images at once",
	"log.level":                              "at once",
	"metrics.address":                        "at once",
	"reject_mount_sources":                   "containers made from then on",
	"restore_from_images":                    "containers made from then on",
	"rlimits":                                "containers made from then on",
	"seccomp_profile":                        "containers made from then on",
	"streaming.idle_timeout":                 "sessions that begin from then on",
	"tracing.endpoint":                       "calls that begin from then on",
	"tracing.samples_per_million":            "calls that begin from then on",
}

// Takes returns what a change of key affects without a restart; "" if it requires one.
func Takes(key string) string {
	if effect, ok := reloadable[key]; ok {
		return effect
	}
	for prefix, effect := range reloadable {
		if strings.HasSuffix(prefix, ".") && strings.HasPrefix(key, prefix) && !strings.HasSuffix(key, ownNetwork) && key != layersKey {
			return effect
		}
	}
	return ""
}

// layersKey is the form of layers, which is chosen at startup.
const layersKey = "image.layers"

// ownNetwork is the suffix of the key of a handler's own network, which is opened at startup.
const ownNetwork = ".cni_conf_dir"

// A Change is a key whose value has changed.
type Change struct {
	Key      string
	Old, New string // in TOML; "" if the handler did not exist or no longer does
	At       string // where the new value is set, as Origin returns it
	Takes    string // what it affects now; "" = nothing before a restart
}

// Reload reads the configuration again and returns its changes. The returned Config is c with
// the changes that take effect at once; c itself stays as it is. After an error, which names
// file and line, nothing has changed.
func (c *Config) Reload(src Source) (*Config, []Change, error) {
	next, err := Load(src)
	if err != nil {
		return nil, nil, err
	}
	before, after := c.byName(), next.byName()
	names := maps.Clone(before)
	maps.Copy(names, after)
	var changes []Change
	for _, name := range slices.Sorted(maps.Keys(names)) {
		old, was := before[name]
		now, is := after[name]
		if was && is && reflect.DeepEqual(old.value.Interface(), now.value.Interface()) {
			continue
		}
		if was != is && (was && old.value.IsZero() || is && now.value.IsZero()) {
			continue // a handler came or went, and does not set this key
		}
		ch := Change{Key: name, At: next.Origin(name), Takes: Takes(name)}
		if was {
			ch.Old = literal(old.value.Interface())
		}
		if is {
			ch.New = literal(now.value.Interface())
		}
		switch {
		case was && is && ch.Takes == "":
			now.value.Set(old.value)
			next.setOrigin(name, c)
		case was && !is:
			ch.Takes = Takes(handlersTable + ".") // the whole handler is removed, with its network
		case !was && ch.Takes == "":
			// Without its network, the handler's pods would get another one.
			delete(next.Handlers, strings.TrimSuffix(strings.TrimPrefix(name, handlersTable+"."), ownNetwork))
		}
		changes = append(changes, ch)
	}
	return next, withoutAbsent(changes, next), nil
}

// withoutAbsent marks all keys of a handler that requires a restart accordingly.
func withoutAbsent(changes []Change, next *Config) []Change {
	for i, ch := range changes {
		name, ok := strings.CutPrefix(ch.Key, handlersTable+".")
		name, _, _ = strings.Cut(name, ".")
		if ok && ch.New != "" && next.Handlers[name] == nil {
			changes[i].Takes = ""
		}
	}
	return changes
}

func (c *Config) byName() map[string]key {
	all := map[string]key{}
	for _, k := range keys(c) {
		all[k.name] = k
	}
	return all
}

// Keep sets a key to its value in from, with its origin.
func (c *Config) Keep(from *Config, key string) {
	to, is := c.byName()[key]
	value, was := from.byName()[key]
	if is && was {
		to.value.Set(value.value)
		c.setOrigin(key, from)
	}
}

func (c *Config) setOrigin(name string, from *Config) {
	delete(c.origin, name)
	if o, ok := from.origin[name]; ok {
		c.origin[name] = o
	}
}
