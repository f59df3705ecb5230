// Package hooks reads oci-hooks(5): files by which an administrator, or the package of a device,
// adds OCI hooks to selected containers.
//
// A file is JSON of version 1.0.0:
//
//	{
//	  "version": "1.0.0",
//	  "hook":   {"path": "/usr/bin/x", "args": ["x", "y"], "env": ["K=V"], "timeout": 10},
//	  "when":   {"always": true, "annotations": {"^key$": "^value$"}, "commands": ["^/bin/"], "hasBindMounts": true},
//	  "stages": ["createRuntime", "poststop"]
//	}
//
// A hook applies if all conditions given in "when" hold, and at least one is given. A list of
// patterns holds if one of them matches. Patterns are regular expressions (RE2) that may match
// anywhere in the text.
//
// Without a version, or with 0.1.0, it is the older form, where one condition is enough, and the
// patterns of annotations are for values:
//
//	{"hook": "/usr/bin/x", "arguments": ["y"], "stages": ["prestart"], "cmds": ["^/bin/"], "annotations": ["^value$"], "hasbindmounts": true}
//
// A file of a later directory replaces the file of the same name in an earlier one; hooks are
// added in the order of the file names in lower case.
//
// A hook may be what confines containers, and a container without it would go unnoticed. So a
// broken file is an error for each container that it may concern: for all if it cannot be decoded,
// else unless the conditions that can be read rule the container out. Unknown keys have no effect,
// except in "when", and in the older form unless they begin with "_": there, one may be a condition
// and cannot be checked.
package hooks

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
)

// A Container is the container that conditions are evaluated against.
type Container struct {
	Annotations map[string]string // the sandbox's and the container's
	Command     string            // argv[0]
	BindMounts  bool              // it has a mount of a host path
}

// A hook is the content of one file.
type hook struct {
	Version string     `json:"version"`
	Hook    specs.Hook `json:"hook"`
	When    when       `json:"when"`
	Stages  []string   `json:"stages"`

	remark error // about keys without effect
}

type when struct {
	Always        *bool             `json:"always"`
	Annotations   map[string]string `json:"annotations"`
	Commands      []string          `json:"commands"`
	HasBindMounts *bool             `json:"hasBindMounts"`

	any     bool  // one condition is enough
	unknown error // about conditions that this package does not know
}

// UnmarshalJSON implements json.Unmarshaler.
func (w *when) UnmarshalJSON(data []byte) error {
	type plain when
	w.unknown = strictly(data, new(plain))
	return json.Unmarshal(data, (*plain)(w))
}

// An old is the content of a file of version 0.1.0.
type old struct {
	Version       string   `json:"version"`
	Hook          string   `json:"hook"`
	Arguments     []string `json:"arguments"`
	Stages        []string `json:"stages"`
	Stage         []string `json:"stage"`
	Cmds          []string `json:"cmds"`
	Cmd           []string `json:"cmd"`
	Annotations   []string `json:"annotations"`
	Annotation    []string `json:"annotation"`
	HasBindMounts *bool    `json:"hasbindmounts"`
}

// current returns the hook as one of version 1.0.0.
func (o *old) current() *hook {
	h := &hook{
		Hook: specs.Hook{Path: o.Hook}, Stages: slices.Concat(o.Stages, o.Stage),
		When: when{Commands: slices.Concat(o.Cmds, o.Cmd), HasBindMounts: o.HasBindMounts, any: true},
	}
	if len(o.Arguments) > 0 {
		h.Hook.Args = append([]string{o.Hook}, o.Arguments...)
	}
	if values := slices.Concat(o.Annotations, o.Annotation); len(values) > 0 {
		h.When.Annotations = map[string]string{"": strings.Join(values, "|")}
	}
	return h
}

// Inject adds to s the hooks that apply to c. A missing directory has no hooks. others are the
// errors of files that do not concern c.
func Inject(s *specs.Spec, dirs []string, c Container) (others []error, err error) {
	files, err := list(dirs)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		h, err := read(file)
		if err != nil {
			return others, fmt.Errorf("hook %s: %w", file, err)
		}
		applies, may, err := h.When.match(c)
		if err = errors.Join(err, h.check()); err != nil {
			err = fmt.Errorf("hook %s: %w", file, err)
			if may {
				return others, err
			}
			others = append(others, err)
		}
		if !applies {
			continue
		}
		if s.Hooks == nil {
			s.Hooks = new(specs.Hooks)
		}
		for _, name := range h.Stages {
			at := hooksAt(s.Hooks, name)
			*at = append(*at, h.Hook)
		}
	}
	return others, nil
}

// Check reads all files of dirs and returns their errors, and remarks about keys without effect.
func Check(dirs []string) (remarks []string, err error) {
	files, err := list(dirs)
	errs := []error{err}
	for _, file := range files {
		h, err := read(file)
		if err == nil {
			if h.remark != nil {
				remarks = append(remarks, fmt.Sprintf("hook %s: a key without effect: %v", file, h.remark))
			}
			_, _, conditions := h.When.match(Container{})
			err = errors.Join(conditions, h.check())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("hook %s: %w", file, err))
		}
	}
	return remarks, errors.Join(errs...)
}

// list returns the files of dirs in the order of their hooks.
func list(dirs []string) ([]string, error) {
	byName := map[string]string{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for hooks: %w", err)
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".json") {
				byName[e.Name()] = filepath.Join(dir, e.Name())
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(byName), func(a, b string) int {
		return cmp.Or(strings.Compare(strings.ToLower(a), strings.ToLower(b)), strings.Compare(a, b))
	})
	for i, n := range names {
		names[i] = byName[n]
	}
	return names, nil
}

// maxFile limits the size of a file, in bytes; real ones have some hundred.
const maxFile = 1 << 20

func read(file string) (*hook, error) {
	data, err := regular.ReadFile(file, maxFile)
	if err != nil {
		return nil, err
	}
	return parse(data)
}

// parse returns an error only if it is unknown which containers the hook concerns.
func parse(data []byte) (*hook, error) {
	var versioned struct{ Version string }
	if err := json.Unmarshal(data, &versioned); err != nil {
		return nil, fault.Internal.Errorf("%v", err)
	}
	h, older := &hook{}, &old{}
	var into any = h
	switch versioned.Version {
	case "1.0.0":
	case "0.1.0", "":
		into = older
	default:
		return nil, fault.Internal.Errorf("version %q is neither 1.0.0 nor 0.1.0", versioned.Version)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return nil, fault.Internal.Errorf("as a file of version %s: %v", cmp.Or(versioned.Version, "0.1.0, since it names none"), err)
	}
	if into == older { // its conditions are among the other keys
		h = older.current()
		h.When.unknown = strictly(uncommented(data), older)
	}
	if into != older || h.When.unknown == nil {
		h.remark = strictly(data, into)
	}
	return h, nil
}

// uncommented returns a JSON object without the keys that begin with "_".
func uncommented(data []byte) []byte {
	var keys map[string]json.RawMessage
	_ = json.Unmarshal(data, &keys) // which succeeded for its struct
	maps.DeleteFunc(keys, func(key string, _ json.RawMessage) bool { return strings.HasPrefix(key, "_") })
	data, _ = json.Marshal(keys)
	return data
}

// strictly returns the error of decoding JSON without unknown keys.
func strictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func (h *hook) check() error {
	switch {
	case !filepath.IsAbs(h.Hook.Path):
		return fault.Internal.Errorf("path %q is not absolute", h.Hook.Path)
	case h.Hook.Timeout != nil && *h.Hook.Timeout <= 0:
		return fault.Internal.Errorf("timeout %d is invalid", *h.Hook.Timeout)
	case len(h.Stages) == 0:
		return fault.Internal.Errorf("it names no stage")
	}
	if _, err := os.Stat(h.Hook.Path); err != nil {
		return err
	}
	for _, name := range h.Stages {
		if hooksAt(new(specs.Hooks), name) == nil {
			return fault.Internal.Errorf("stage %q is not known", name)
		}
	}
	return nil
}

// hooksAt returns the list of a stage's hooks, nil if there is no such stage.
func hooksAt(h *specs.Hooks, name string) *[]specs.Hook {
	switch name {
	case "prestart":
		//lint:ignore SA1019 OCI still has prestart hooks, and NVIDIA's runtime hook is one
		return &h.Prestart
	case "createRuntime":
		return &h.CreateRuntime
	case "createContainer":
		return &h.CreateContainer
	case "startContainer":
		return &h.StartContainer
	case "poststart":
		return &h.Poststart
	case "poststop":
		return &h.Poststop
	}
	return nil
}

// match reports whether the hook applies to c, and whether it may, because a condition that cannot
// be read might decide. It reads every condition, so that a broken one is found whatever the
// container; err is about those.
func (w *when) match(c Container) (applies, may bool, err error) {
	met, failed, errs := 0, 0, []error{}
	condition := func(ok bool) {
		if ok {
			met++
		} else {
			failed++
		}
	}
	pattern := func(key, text string) *regexp.Regexp {
		re, err := regexp.Compile(text)
		if err != nil {
			errs = append(errs, fault.Internal.Errorf("pattern of %s: %v", key, err))
		}
		return re
	}
	if w.Always != nil {
		condition(*w.Always)
	}
	if w.HasBindMounts != nil {
		condition(*w.HasBindMounts && c.BindMounts)
	}
	for _, text := range slices.Sorted(maps.Keys(w.Annotations)) {
		key, value := pattern("annotations", text), pattern("annotations", w.Annotations[text])
		if key == nil || value == nil {
			continue
		}
		found := false
		for k, v := range c.Annotations {
			found = found || key.MatchString(k) && value.MatchString(v)
		}
		condition(found)
	}
	found, unread := false, false
	for _, text := range w.Commands {
		if command := pattern("commands", text); command == nil {
			unread = true
		} else if command.MatchString(c.Command) {
			found = true
		}
	}
	if found || len(w.Commands) > 0 && !unread {
		condition(found)
	}
	if w.unknown != nil {
		errs = append(errs, fault.Internal.Errorf("conditions: %v", w.unknown))
	}
	applies = met > 0 && (failed == 0 || w.any)
	may = applies || len(errs) > 0 && (failed == 0 || w.any)
	return applies, may, errors.Join(errs...)
}
