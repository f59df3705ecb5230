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
// not be read, as the device may be in one of them. Other devices do not need those.
//
// With bind no node can be made, and whoever starts the container binds the host's of the same
// path. So those that have another path on the host become mounts.
func Inject(s *specs.Spec, dirs, names []string, bind bool) (err error) {
	if len(names) == 0 {
		return nil
	}
	known, broken := load(dirs)
	var missing []string
	edits, files := &cdi.ContainerEdits{}, map[*cdi.Spec]bool{}
	for _, name := range names {
		d := known[name]
		if d == nil {
			missing = append(missing, name)
			continue
		}
		if f := d.GetSpec(); !files[f] {
			files[f] = true
			edits.Append(&cdi.ContainerEdits{ContainerEdits: &f.ContainerEdits})
		}
		edits.Append(&cdi.ContainerEdits{ContainerEdits: &d.ContainerEdits})
	}
	if len(missing) > 0 {
		return fault.Invalid.Errorf("CDI device %s is in no file of %s%s", strings.Join(missing, ", "), strings.Join(dirs, ", "), broken)
	}
	if err := edits.Apply(s); err != nil {
		return fmt.Errorf("CDI device %s: %w", strings.Join(names, ", "), err)
	}
	if !bind {
		return nil
	}
	sources := map[string]string{} // by path; of several the last counts, as in the library
	var paths []string
	for _, n := range edits.DeviceNodes {
		if _, known := sources[n.Path]; !known {
			paths = append(paths, n.Path)
		}
		sources[n.Path] = cmp.Or(n.HostPath, n.Path)
	}
	for _, path := range paths {
		if source := sources[path]; source != path {
			s.Linux.Devices = slices.DeleteFunc(s.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == path })
			s.Mounts = append(s.Mounts, specs.Mount{Destination: path, Type: "bind", Source: source, Options: []string{"bind", "rprivate", "nosuid", "noexec"}})
		}
	}
	return nil
}

// load reads the files in dirs, and returns their devices by name. broken has the files that cannot
// be read and the devices that two files of a directory have: they concern only those who request
// what is in them.
func load(dirs []string) (devices map[string]*cdi.Device, broken string) {
	devices = map[string]*cdi.Device{}
	for priority, dir := range dirs {
		entries, _ := os.ReadDir(dir) // without an answer there are no files in it
		from := map[string]string{}   // the device's file in this directory
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if ext := filepath.Ext(path); ext != ".json" && ext != ".yaml" || e.IsDir() {
				continue
			}
			file, err := read(path, priority)
			if err != nil {
				broken += fmt.Sprintf("; %s: %v", path, err)
				continue
			}
			for _, d := range file.Devices {
				device := file.GetDevice(d.Name)
				name := device.GetQualifiedName()
				if other, ok := from[name]; ok {
					broken += fmt.Sprintf("; %s is in %s and in %s", name, other, path)
					device = nil
				}
				from[name], devices[name] = path, device
			}
		}
	}
	return devices, broken
}

// read reads one file. Vendors' agents, which run in pods, may put anything there: the library
// panics on a null in a list.
func read(path string, priority int) (file *cdi.Spec, err error) {
	if err := regular.CheckConfig(path); err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p != nil {
			err = fault.Invalid.Errorf("%v", p)
		}
	}()
	return cdi.ReadSpec(path, priority)
}
