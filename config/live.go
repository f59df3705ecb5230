package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// live are the keys whose change is taken at a reload, and by whom it is felt. A
// change of any other needs a restart of crispd, which no container notices.
// A name that ends with a dot stands for all keys below it.
var live = map[string]string{
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

// Takes says by whom a change of key is felt without a restart, "" if it needs one.
func Takes(key string) string {
	if effect, ok := live[key]; ok {
		return effect
	}
	for prefix, effect := range live {
		if strings.HasSuffix(prefix, ".") && strings.HasPrefix(key, prefix) && !strings.HasSuffix(key, ownNetwork) {
			return effect
		}
	}
	return ""
}

// ownNetwork ends the key of a handler's own network, which is opened at the start.
const ownNetwork = ".cni_conf_dir"

// A Change is a key with another value than before.
type Change struct {
	Key      string
	Old, New string // as in a file; "" if there was or is no such handler
	At       string // where the new value comes from, as Origin has it
	Takes    string // by whom it is felt now; "" = nobody before a restart
}

// Reload reads the configuration again and tells what is different in it. The
// Config that it returns is c with the changes that are taken; c stays as it is. An
// error, which names file and line, means that nothing is.
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
			continue // a handler came or went, and this says nothing of it
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
			ch.Takes = Takes(handlersTable + ".") // it goes whole, its network too
		case !was && ch.Takes == "":
			// A handler whose network is not open would give its pods another one.
			delete(next.Handlers, strings.TrimSuffix(strings.TrimPrefix(name, handlersTable+"."), ownNetwork))
		}
		changes = append(changes, ch)
	}
	return next, withoutAbsent(changes, next), nil
}

// withoutAbsent says of all keys of a handler that waits for a restart that they do.
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

// Keep gives a key the value that it has in from, and where that came from.
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
