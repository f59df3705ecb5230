package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// featuresTimeout bounds how long a program may take to report its features.
const featuresTimeout = 10 * time.Second

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
	for name, has := range map[string]bool{"rro": f.RecursiveRO, "nosymfollow": f.NoSymFollow, "idmap": f.IDMap, "netDevices": f.NetDevices} {
		if has {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// AskFeatures asks the OCI runtime at path for its features, with the command "features" that
// the runtime specification defines since 1.1 ("features.md").
func AskFeatures(ctx context.Context, path string) (f Features, err error) {
	err = ask(ctx, nil, path, "features", f.parse)
	return f, err
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

// AskShim asks a shim for its version, and for the features of the OCI runtime behind it: with -info
// it reads its options, and prints a containerd.types.RuntimeInfo (api/types/introspection.proto,
// since containerd 2.0). Older shims fail at the flag.
func AskShim(ctx context.Context, s *Shim) (f Features, err error) {
	options, _ := proto.Marshal(&anypb.Any{TypeUrl: s.OptionsType, Value: s.Options}) // fails for a type that is no text
	err = ask(ctx, options, s.Path, "-info", func(data []byte) error {
		var name, version, kind, report []byte
		raw := func(to *[]byte) field { return field{each: func(data []byte) error { *to = data; return nil }} }
		err := decodeFields(data, map[protowire.Number]field{
			1: raw(&name), 2: sub(map[protowire.Number]field{1: raw(&version)}),
			4: sub(map[protowire.Number]field{1: raw(&kind), 2: raw(&report)}),
		})
		if err == nil && string(kind) == "types.containerd.io/opencontainers/runtime-spec/1/features/Features" {
			err = f.parse(report)
		}
		f.Version = strings.TrimSpace(fmt.Sprintf("%.100s %.100s", name, version))
		return err
	})
	return f, err
}

// ask runs a program, whose answer parse gets. At the end of the time what it has started dies, too.
func ask(ctx context.Context, stdin []byte, path, arg string, parse func([]byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, featuresTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, arg)
	var out, complaint printed
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // a child may keep the pipes open
	err := cmd.Run()
	if err == nil {
		err = parse(out)
	}
	if err != nil {
		return fmt.Errorf("features of %s: %w (stderr: %.200q)", path, err, complaint)
	}
	return nil
}

// printed is what a program has printed, of a bounded size.
type printed []byte

func (p *printed) Write(data []byte) (int, error) {
	if len(*p)+len(data) > 256<<10 {
		return 0, errors.New("more than 256 KiB")
	}
	*p = append(*p, data...)
	return len(data), nil
}
