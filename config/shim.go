package config

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The values of Handler.Snapshot.
const (
	SnapshotDirectory = "directory"
	SnapshotMounts    = "mounts"
)

// The values of Handler.Sandboxer, which are containerd's.
const (
	SandboxerContainer = "podsandbox"
	SandboxerShim      = "shim"
)

// ShimOptions are what a shim gets with each container: a file of its own, or a table.
type ShimOptions struct {
	File  string         // absolute; "" = the table
	Table map[string]any // of strings, booleans, integers, floats, lists and tables
}

// TypeURL is the key of a table of options that has the type of the rest.
const TypeURL = "type_url"

// RuncOptions is the type of the options of runc's shim.
const RuncOptions = "containerd.runc.v1.Options"

// Type returns the type of the options; "" if the table names none.
func (o *ShimOptions) Type() string {
	t, _ := o.Table[TypeURL].(string)
	return t
}

// Values returns the table without its type.
func (o *ShimOptions) Values() map[string]any {
	values := maps.Clone(o.Table)
	delete(values, TypeURL)
	return values
}

// parseOptions reads the value of the key options.
func parseOptions(v any) (*ShimOptions, error) {
	switch v := v.(type) {
	case string:
		if v == "" {
			return nil, nil
		}
		return &ShimOptions{File: v}, nil
	case map[string]any:
		table, err := plain(v)
		if err != nil {
			return nil, err
		}
		return &ShimOptions{Table: table.(map[string]any)}, nil
	}
	return nil, fmt.Errorf("want the path of a file or a table, have %s", kind(v))
}

// plain returns a value of TOML with all its lists as []any. Dates, which no shim takes, are an
// error.
func plain(v any) (any, error) {
	switch v := v.(type) {
	case string, bool, int64, float64:
		return v, nil
	case []map[string]any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = v[i]
		}
		return plain(list)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			var err error
			if list[i], err = plain(v[i]); err != nil {
				return nil, err
			}
		}
		return list, nil
	case map[string]any:
		table := make(map[string]any, len(v))
		for name, value := range v {
			var err error
			if table[name], err = plain(value); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		return table, nil
	}
	return nil, fmt.Errorf("want strings, numbers, booleans, lists and tables, have %s", kind(v))
}

// inline writes a value of ShimOptions.Table in one line of TOML.
func inline(v any) string {
	var parts []string
	switch v := v.(type) {
	case string:
		return quote(v)
	case float64:
		switch {
		case math.IsInf(v, 0), math.IsNaN(v):
			return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(v, 'g', -1, 64), "+"))
		case v == math.Trunc(v) && math.Abs(v) < 1e15:
			return strconv.FormatFloat(v, 'f', 1, 64)
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	case []any:
		for _, e := range v {
			parts = append(parts, inline(e))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, toml.Key{name}.String()+" = "+inline(v[name]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return fmt.Sprint(v)
}

// checkShim refuses what only a shim has at a handler without one, and what excludes a shim.
func (c *Config) checkShim(key string, h *Handler) error {
	for _, f := range []struct {
		key string
		set bool
	}{
		{".options", h.Options != nil}, {".snapshot", h.Snapshot != ""}, {".sandboxer", h.Sandboxer != ""},
		{".overhead.cpu", h.Overhead.CPU != ""}, {".overhead.memory", h.Overhead.Memory != ""},
	} {
		if f.set && h.Shim == "" {
			return c.wrong(key+f.key, "only a handler with a shim has this")
		}
	}
	if h.Shim == "" {
		return nil
	}
	switch o := h.Options; {
	case !filepath.IsAbs(h.Shim):
		return c.wrong(key+".shim", "%q is not an absolute path", h.Shim)
	case h.Engine != "":
		return c.wrong(key+".engine", "the handler has a shim (%s), which excludes an engine", c.Origin(key+".shim"))
	case o != nil && o.Table == nil && !filepath.IsAbs(o.File):
		return c.wrong(key+".options", "%q is not an absolute path", o.File)
	case o != nil && o.Table != nil && o.Type() == "":
		return c.wrong(key+".options", "the table has no string %s, the type of the rest", TypeURL)
	case h.Snapshot != SnapshotDirectory && h.Snapshot != SnapshotMounts:
		return c.wrong(key+".snapshot", "%q is none of %s, %s", h.Snapshot, SnapshotDirectory, SnapshotMounts)
	case h.Sandboxer != SandboxerContainer && h.Sandboxer != SandboxerShim:
		return c.wrong(key+".sandboxer", "%q is none of %s, %s", h.Sandboxer, SandboxerContainer, SandboxerShim)
	}
	if _, err := quantity(h.Overhead.CPU, maxOverheadCPU); err != nil {
		return c.wrong(key+".overhead.cpu", "%v", err)
	}
	if _, err := quantity(h.Overhead.Memory, maxOverheadMemory); err != nil {
		return c.wrong(key+".overhead.memory", "%v", err)
	}
	return nil
}

// The largest overheads: more than any machine has.
const (
	maxOverheadCPU    = 1 << 16 // CPUs
	maxOverheadMemory = 1 << 50 // bytes
)

// quantity parses a quantity of Kubernetes up to most; "" is 0.
func quantity(text string, most int64) (q resource.Quantity, err error) {
	if text == "" {
		return q, nil
	}
	if q, err = resource.ParseQuantity(text); err != nil {
		return q, fmt.Errorf("%.100q is not a quantity such as \"250m\" or \"120Mi\"", text)
	}
	if q.Sign() < 0 || q.CmpInt64(most) > 0 {
		return q, fmt.Errorf("%.100q is not between 0 and %d", text, most)
	}
	return q, nil
}

// MilliCPU returns CPU in thousandths of a CPU; 0 = none.
func (o Overhead) MilliCPU() int64 {
	q, _ := quantity(o.CPU, maxOverheadCPU) // checked by Load
	return q.MilliValue()
}

// Bytes returns Memory in bytes; 0 = none.
func (o Overhead) Bytes() int64 {
	q, _ := quantity(o.Memory, maxOverheadMemory) // checked by Load
	return q.Value()
}
