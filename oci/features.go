package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// Bounds of how long a program may take to report its features, and of what it prints, in bytes.
const (
	featuresTimeout = 10 * time.Second
	maxFeatures     = 256 << 10
)

// Features are optional features of an OCI runtime, or of the one behind a shim.
type Features struct {
	Version     string // a shim's name and version; "" = not reported
	RecursiveRO bool   // supports the mount option "rro"
	NoSymFollow bool   // supports the mount option "nosymfollow"
	IDMap       bool   // supports mounts mapped to a user namespace
	NetDevices  bool   // moves network devices into a container's network
}

// Names returns the features that are there, as the runtime specification calls them.
func (f Features) Names() (names []string) {
	for i, is := range []bool{f.RecursiveRO, f.NoSymFollow, f.IDMap, f.NetDevices} {
		if is {
			names = append(names, [...]string{"rro", "nosymfollow", "idmap", "netDevices"}[i])
		}
	}
	return names
}

// AskFeatures asks the OCI runtime at path for its features, with the command "features" that
// the runtime specification defines since 1.1 ("features.md").
func AskFeatures(ctx context.Context, path string) (f Features, err error) {
	data, err := ask(ctx, nil, path, "features")
	if err == nil {
		err = f.parse(data)
	}
	if err != nil {
		return Features{}, fmt.Errorf("features of %s: %w", path, err)
	}
	return f, nil
}

func (f *Features) parse(data []byte) error {
	var all features.Features
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	f.RecursiveRO, f.NoSymFollow = slices.Contains(all.MountOptions, "rro"), slices.Contains(all.MountOptions, "nosymfollow")
	is := func(enabled *bool) bool { return enabled != nil && *enabled }
	if l := all.Linux; l != nil {
		f.IDMap = l.MountExtensions != nil && l.MountExtensions.IDMap != nil && is(l.MountExtensions.IDMap.Enabled)
		f.NetDevices = l.NetDevices != nil && is(l.NetDevices.Enabled)
	}
	return nil
}

// shimFeatures is the type URL of the features that AskFeatures gets, in a shim's answer.
const shimFeatures = "types.containerd.io/opencontainers/runtime-spec/1/features/Features"

// AskShim asks a shim for its version, and for the features of the OCI runtime behind it: with -info
// it reads its options, a google.protobuf.Any, and prints a containerd.types.RuntimeInfo
// (api/types/introspection.proto, since containerd 2.0). Older shims fail at the flag.
func AskShim(ctx context.Context, s *Shim) (f Features, err error) {
	var options []byte
	if s.OptionsType != "" {
		options = protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), s.OptionsType)
		options = protowire.AppendBytes(protowire.AppendTag(options, 2, protowire.BytesType), s.Options)
	}
	data, err := ask(ctx, options, s.Path, "-info")
	var name, version, kind, reported []byte
	if err == nil {
		err = decodeFields(data, map[protowire.Number]field{
			1: raw(&name), 2: sub(map[protowire.Number]field{1: raw(&version)}),
			4: sub(map[protowire.Number]field{1: raw(&kind), 2: raw(&reported)}),
		})
	}
	if err == nil && string(kind) == shimFeatures {
		err = f.parse(reported)
	}
	if err != nil {
		return Features{}, fmt.Errorf("features of %s: %w", s.Path, err)
	}
	f.Version = strings.TrimSpace(short(name) + " " + short(version))
	return f, nil
}

func raw(to *[]byte) field {
	return field{each: func(data []byte) error { *to = data; return nil }}
}

// short returns the beginning of a program's text.
func short(text []byte) string {
	return strings.ToValidUTF8(string(bytes.TrimSpace(text[:min(len(text), 200)])), "")
}

// ask runs a program and returns what it prints. At the end of the time what it has started dies, too.
func ask(ctx context.Context, stdin []byte, path string, arg string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, featuresTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, arg)
	var out, complaint printed
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // a child may keep the pipes open
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w (stderr: %q)", err, short(complaint))
	}
	return out, nil
}

// printed is what a program has printed.
type printed []byte

func (p *printed) Write(data []byte) (int, error) {
	if len(*p)+len(data) > maxFeatures {
		return 0, fmt.Errorf("it prints more than %d bytes", maxFeatures)
	}
	*p = append(*p, data...)
	return len(data), nil
}
