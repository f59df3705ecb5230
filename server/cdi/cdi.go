// Package cdi adds devices to containers as their vendors describe them: the Container Device
// Interface, CNCF TAG runtime, version 1.1.
//
// A file in one of the directories (JSON or YAML) says what a container needs for a device to
// work in it: device nodes, mounts, variables, hooks. A container names devices as
// vendor.com/class=name, in CRI's field or, for device plugins older than that field, in
// annotations below cdi.k8s.io/.
//
// The directories are read whenever a container requests a device, and only then. So a file that
// a vendor's tool has just written is found, nothing needs watching, and a node without such
// devices pays nothing.
package cdi

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
)

// Names returns the devices that a container requests, each once: those of CRI's field in their
// order, then those of the annotations in the order of their keys.
func Names(field []string, annotations map[string]string) ([]string, error) {
	names := slices.Clone(field)
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(key, cdi.AnnotationPrefix) {
			names = append(names, strings.Split(annotations[key], ",")...)
		}
	}
	var list []string
	for _, n := range names {
		if !parser.IsQualifiedName(n) {
			return nil, fault.Invalid.Errorf("CDI device %q: the name is not vendor/class=device", n)
		}
		if !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list, nil
}

// Inject adds the devices to s, as the files in dirs describe them. A file in a
// later directory takes precedence over an earlier one with the same device. The
// error is fault.Invalid if no file has a device; it names the files that could
// not be read, as the device may be in one of them.
//
// With bind no node can be made, and whoever starts the container binds the host's of the same
// path. So those that have another path on the host become mounts.
func Inject(s *specs.Spec, dirs, names []string, bind bool) (err error) {
	if len(names) == 0 {
		return nil
	}
	if err := readable(dirs); err != nil {
		return fmt.Errorf("CDI device %s: %w", strings.Join(names, ", "), err)
	}
	// The library panics on a null in a list, without naming the file.
	defer func() {
		if p := recover(); p != nil {
			err = fault.Invalid.Errorf("CDI device %s: %s: %v", strings.Join(names, ", "), culprits(dirs), p)
		}
	}()
	// The error is always nil, as NewCache documents.
	cache, _ := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	missing, err := cache.InjectDevices(s, names...)
	if len(missing) > 0 {
		return fault.Invalid.Errorf("CDI device %s is in no file of %s%s", strings.Join(missing, ", "), strings.Join(dirs, ", "), broken(cache))
	}
	if err != nil {
		return fmt.Errorf("CDI device %s: %w", strings.Join(names, ", "), err)
	}
	if !bind {
		return nil
	}
	sources := map[string]string{} // by path; of several the last counts, as in the library
	var paths []string
	files := map[*cdi.Spec]bool{}
	for _, name := range names {
		d := cache.GetDevice(name)
		nodes := d.ContainerEdits.DeviceNodes
		if f := d.GetSpec(); !files[f] {
			files[f], nodes = true, slices.Concat(f.ContainerEdits.DeviceNodes, nodes)
		}
		for _, n := range nodes {
			if _, known := sources[n.Path]; !known {
				paths = append(paths, n.Path)
			}
			sources[n.Path] = cmp.Or(n.HostPath, n.Path)
		}
	}
	for _, path := range paths {
		if source := sources[path]; source != path {
			s.Linux.Devices = slices.DeleteFunc(s.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == path })
			s.Mounts = append(s.Mounts, specs.Mount{Destination: path, Type: "bind", Source: source, Options: []string{"bind", "rprivate", "nosuid", "noexec"}})
		}
	}
	return nil
}

// files returns the files that the library reads in dirs.
func files(dirs []string) (list []string) {
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // no files in it then
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if ext := filepath.Ext(path); (ext == ".json" || ext == ".yaml") && !e.IsDir() {
				list = append(list, path)
			}
		}
	}
	return list
}

// readable refuses directories with anything but regular files: the library would read a FIFO
// until somebody writes to it. Vendors' agents, which run in pods, may put anything there.
func readable(dirs []string) error {
	for _, path := range files(dirs) {
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
			return fault.Invalid.Errorf("%s: %w", path, regular.ErrOther)
		}
	}
	return nil
}

// culprits names the files in dirs that make the library panic.
func culprits(dirs []string) string {
	list := slices.DeleteFunc(files(dirs), func(path string) bool { return !panics(path) })
	if len(list) == 0 {
		return "a file of " + strings.Join(dirs, ", ")
	}
	return strings.Join(list, ", ")
}

func panics(path string) (is bool) {
	defer func() { is = recover() != nil }()
	_, _ = cdi.ReadSpec(path, 0)
	return false
}

// broken lists the files that could not be read, and why.
func broken(cache *cdi.Cache) string {
	var b strings.Builder
	errs := cache.GetErrors()
	for _, file := range slices.Sorted(maps.Keys(errs)) {
		fmt.Fprintf(&b, "; %s: %v", file, errs[file][0])
	}
	return b.String()
}
