package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server"
)

// errNoUserNS says why pods of a shim use the host's user namespace.
var errNoUserNS = errors.New("its shim makes no user namespaces")

// errNoProgram marks the errors of handlers whose OCI runtime is not there.
var errNoProgram = errors.New("no program")

// shimHandler adds to h what the configuration of a handler with a shim says. The program need not
// be there yet: DaemonSets install some. Until it is there, and for a shim that reports none, the
// handler has no features.
func shimHandler(ctx context.Context, h *server.Handler, hc *config.Handler, systemd bool, name string, log *slog.Logger) (err error) {
	if h.Shim, err = shimOf(hc, systemd); err != nil {
		return err
	}
	h.Annotations = hc.Annotations
	h.Overhead = server.Overhead{MilliCPU: hc.Overhead.MilliCPU(), Memory: hc.Overhead.Bytes()}
	h.NoUserNS = errNoUserNS
	if h.Features, err = oci.AskShim(ctx, h.Shim); err != nil {
		log.Info("shim did not report its features", "handler", name, "err", err)
	}
	h.SpecHost.RecursiveRO = h.SpecHost.RecursiveRO && h.Features.RecursiveRO
	return nil
}

// genericOptions is the type of the options of shims that define none of their own: 1 a type, and 2
// a file or 3 a text (containerd's api/types/runtimeoptions/v1/api.proto).
const genericOptions = "runtimeoptions.v1.Options"

// runcShim is the program of runc's shim.
const runcShim = "containerd-shim-runc-v2"

// shimOf returns the shim of a handler, with its options as a message. runc's shim gets the node's
// cgroup driver unless it is given another one.
func shimOf(hc *config.Handler, systemd bool) (s *oci.Shim, err error) {
	s = &oci.Shim{Path: hc.Shim, Mounts: hc.Snapshot == config.SnapshotMounts, SandboxAPI: hc.Sandboxer == config.SandboxerShim}
	o := hc.Options
	if o == nil && systemd && filepath.Base(hc.Shim) == runcShim {
		o = &config.ShimOptions{Table: map[string]any{config.TypeURL: config.RuncOptions}}
	}
	switch {
	case o == nil:
	case o.Table == nil:
		s.OptionsType, s.Options = genericOptions, appendString(appendString(nil, 1, typeOfFile(hc.Shim)), 2, o.File)
	case o.Type() == config.RuncOptions:
		values := o.Values()
		if _, set := values["SystemdCgroup"]; !set && systemd {
			values["SystemdCgroup"] = true
		}
		s.OptionsType = config.RuncOptions
		s.Options, err = runcOptions(values)
	default:
		var text bytes.Buffer
		err = toml.NewEncoder(&text).Encode(o.Values())
		s.OptionsType, s.Options = genericOptions, appendString(appendString(nil, 1, o.Type()), 3, text.String())
	}
	return s, err
}

// typeOfFile returns the type of a shim's configuration file by the name of its program, as
// containerd derives the program from the name of a runtime: containerd-shim-runsc-v1 runs
// io.containerd.runsc.v1, whose options have the type io.containerd.runsc.v1.options. It returns ""
// for any other name.
func typeOfFile(program string) string {
	name, ok := strings.CutPrefix(filepath.Base(program), "containerd-shim-")
	kind, version, two := strings.Cut(name, "-")
	if !ok || !two || kind == "" || version == "" || strings.Contains(version, "-") {
		return ""
	}
	return "io.containerd." + kind + "." + version + ".options"
}

func appendString(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

// runcFields are the fields of containerd.runc.v1.Options (containerd's
// api/types/runc/options/oci.proto), by their names in containerd's configuration, with a value of
// their types.
var runcFields = map[string]struct {
	number protowire.Number
	is     any
}{
	"NoPivotRoot": {1, false}, "NoNewKeyring": {2, false}, "ShimCgroup": {3, ""}, "IoUid": {4, int64(0)}, "IoGid": {5, int64(0)},
	"BinaryName": {6, ""}, "Root": {7, ""}, "SystemdCgroup": {9, false}, "CriuImagePath": {10, ""}, "CriuWorkPath": {11, ""},
}

// runcOptions encodes the options of runc's shim.
func runcOptions(values map[string]any) (b []byte, err error) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		f, ok := runcFields[name]
		if !ok {
			return nil, fmt.Errorf("%s has no %s, only %s", config.RuncOptions, name, strings.Join(slices.Sorted(maps.Keys(runcFields)), ", "))
		}
		value := values[name]
		if fmt.Sprintf("%T", value) != fmt.Sprintf("%T", f.is) {
			return nil, fmt.Errorf("%s is a %T, not a %T", name, value, f.is)
		}
		switch v := value.(type) {
		case string:
			b = appendString(b, f.number, v)
		case bool:
			b = protowire.AppendVarint(protowire.AppendTag(b, f.number, protowire.VarintType), protowire.EncodeBool(v))
		case int64:
			if v < 0 || v > math.MaxUint32 {
				return nil, fmt.Errorf("%s = %d is not an ID", name, v)
			}
			b = protowire.AppendVarint(protowire.AppendTag(b, f.number, protowire.VarintType), uint64(v))
		}
	}
	return b, nil
}

// checkHandlers says what each handler is, whether its program and the files that it is given are
// there, and what the program reports.
func checkHandlers(ctx context.Context, c *config.Config, systemd bool) []finding {
	var list []finding
	for _, name := range slices.Sorted(maps.Keys(c.Handlers)) {
		h := c.Handlers[name]
		f := finding{what: fmt.Sprintf("handler %s: %s", name, config.Libcontainer), ok: true}
		switch {
		case h.Shim != "":
			f = shimFinding(ctx, name, h, systemd)
		case h.Engine != config.Libcontainer:
			_, err := exec.LookPath(h.Engine)
			f.what, f.ok, f.fatal = fmt.Sprintf("handler %s: OCI runtime %s", name, h.Engine), err == nil, true
			if err != nil {
				f.follows = err.Error()
			} else {
				f.what += reported(oci.AskFeatures(ctx, h.Engine))
			}
		}
		list = append(list, f)
	}
	return list
}

// reported says what a program has reported.
func reported(f oci.Features, err error) string {
	if err != nil {
		return " (which does not report its features)"
	}
	all := strings.Join(append(strings.Fields(f.Version), f.Names()...), " ")
	return " (" + cmp.Or(all, "no optional features") + ")"
}

func shimFinding(ctx context.Context, name string, h *config.Handler, systemd bool) finding {
	f := finding{what: fmt.Sprintf("handler %s: shim %s, root file systems as %s", name, h.Shim, cmp.Or(h.Snapshot, config.SnapshotDirectory)), ok: true}
	if h.Sandboxer == config.SandboxerShim {
		f.what += ", sandboxes by its Sandbox API"
	}
	if _, err := exec.LookPath(h.Shim); err != nil {
		f.ok, f.follows = false, fmt.Sprintf("its pods cannot be started until the program is there: %v", err)
		return f
	}
	if o := h.Options; o != nil && o.Table == nil {
		switch info, err := os.Stat(o.File); {
		case errors.Is(err, fs.ErrNotExist):
			f.ok, f.follows = false, "its options are in a file that does not exist: "+o.File
		case err != nil:
			f.ok, f.follows = false, "its options cannot be read: "+err.Error()
		case !info.Mode().IsRegular():
			f.ok, f.follows = false, "its options are not a regular file: "+o.File
		}
	}
	if shim, err := shimOf(h, systemd); f.ok && err == nil {
		f.what += reported(oci.AskShim(ctx, shim))
	}
	return f
}
