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
// A file of a later directory replaces the file of the same name in an earlier one; hooks are
// added in the order of the file names in lower case.
//
// A broken file is an error for every container: a hook may be what confines containers, and
// nobody would notice that one runs without it.
package hooks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// version is the only version of the format.
const version = "1.0.0"

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
}

type when struct {
	Always        *bool             `json:"always"`
	Annotations   map[string]string `json:"annotations"`
	Commands      []string          `json:"commands"`
	HasBindMounts *bool             `json:"hasBindMounts"`
}

// Inject adds to s the hooks that apply to c. A missing directory has no hooks.
func Inject(s *specs.Spec, dirs []string, c Container) error {
	files, err := list(dirs)
	if err != nil {
		return err
	}
	for _, file := range files {
		h, err := read(file)
		if err != nil {
			return fmt.Errorf("hook %s: %w", file, err)
		}
		applies, err := h.When.match(c)
		if err != nil {
			return fmt.Errorf("hook %s: %w", file, err)
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
	return nil
}

// Check reads all files of dirs and returns their errors.
func Check(dirs []string) error {
	files, err := list(dirs)
	errs := []error{err}
	for _, file := range files {
		h, err := read(file)
		if err == nil {
			_, err = h.When.match(Container{})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("hook %s: %w", file, err))
		}
	}
	return errors.Join(errs...)
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
		if c := strings.Compare(strings.ToLower(a), strings.ToLower(b)); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	for i, n := range names {
		names[i] = byName[n]
	}
	return names, nil
}

// maxFile limits the size of a file, in bytes; real ones have some hundred.
const maxFile = 1 << 20

func read(file string) (*hook, error) {
	f, err := regular.Open(file) // opening something else may block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := regular.ReadAll(f, maxFile)
	if err != nil {
		return nil, err
	}
	h := new(hook)
	d := json.NewDecoder(bytes.NewReader(data))
	// An unknown condition must not be mistaken for an absent one.
	d.DisallowUnknownFields()
	if err := d.Decode(h); err != nil {
		return nil, fault.Internal.Errorf("%v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fault.Internal.Errorf("something follows the hook, which nobody would read")
	}
	return h, h.check()
}

func (h *hook) check() error {
	switch {
	case h.Version != version:
		return fault.Internal.Errorf("version %q is not %s", h.Version, version)
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

// match reports whether all given conditions hold. It compiles every pattern, so that a broken
// one is found whatever the container.
func (w when) match(c Container) (bool, error) {
	given, matches := 0, true
	condition := func(ok bool) { given, matches = given+1, matches && ok }
	if w.Always != nil {
		condition(*w.Always)
	}
	if w.HasBindMounts != nil {
		condition(*w.HasBindMounts && c.BindMounts)
	}
	for _, pattern := range slices.Sorted(maps.Keys(w.Annotations)) {
		key, err := regexp.Compile(pattern)
		if err != nil {
			return false, fault.Internal.Errorf("pattern of annotations: %v", err)
		}
		value, err := regexp.Compile(w.Annotations[pattern])
		if err != nil {
			return false, fault.Internal.Errorf("pattern of annotations: %v", err)
		}
		found := false
		for k, v := range c.Annotations {
			found = found || key.MatchString(k) && value.MatchString(v)
		}
		condition(found)
	}
	if len(w.Commands) > 0 {
		found := false
		for _, pattern := range w.Commands {
			command, err := regexp.Compile(pattern)
			if err != nil {
				return false, fault.Internal.Errorf("pattern of commands: %v", err)
			}
			found = found || command.MatchString(c.Command)
		}
		condition(found)
	}
	return given > 0 && matches, nil
}
