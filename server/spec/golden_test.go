package spec_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/userns"
	"github.com/crisp-cri/crisp/server/spec"
	"github.com/crisp-cri/crisp/test/golden"
)

// A golden case is a txtar of container.json and sandbox.json in CRI's format (protojson) and
// input.json with the rest of spec.Input, then of spec.json or, if Build must fail, error.
type goldenInput struct {
	Host           spec.Host
	Image          v1.ImageConfig
	User           *spec.User
	Namespaces     map[string]string
	Sources        []spec.Mount // one for each mount of the container
	Volumes        []spec.Volume
	Files          spec.Files
	Devices        []goldenDevice
	SeccompProfile json.RawMessage
	IDs            *userns.Map
}

type goldenDevice struct {
	specs.LinuxDevice
	Source, Access string
}

// TestGolden pins the conversion: a change shows every container that it affects. The comment at
// the top of a case describes it.
func TestGolden(t *testing.T) {
	golden.Cases(t, func(t *testing.T, archive *txtar.Archive) *txtar.Archive {
		part := map[string][]byte{}
		for _, f := range archive.Files {
			part[f.Name] = f.Data
		}
		in := read(t, part)
		got := txtar.File{Name: "spec.json"}
		if s, err := spec.Build(in); err != nil {
			got = txtar.File{Name: "error", Data: []byte(err.Error() + "\n")}
		} else {
			got.Data, err = json.MarshalIndent(s, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got.Data = append(got.Data, '\n')
		}
		return &txtar.Archive{Comment: archive.Comment, Files: append(slices.Clone(archive.Files[:inputs(archive)]), got)}
	})
}

// inputs returns the number of files in the archive that are Build's input.
func inputs(a *txtar.Archive) int {
	n := 0
	for _, f := range a.Files {
		if strings.HasSuffix(f.Name, ".json") && f.Name != "spec.json" {
			n++
		}
	}
	return n
}

func read(t *testing.T, part map[string][]byte) spec.Input {
	t.Helper()
	in := spec.Input{
		Container:   &cri.ContainerConfig{},
		Sandbox:     &cri.PodSandboxConfig{},
		Root:        "/run/crisp/image/c0/root",
		Hostname:    "pod",
		CgroupsPath: "/crisp/p0/c0",
	}
	var rest goldenInput
	if err := protojson.Unmarshal(part["container.json"], in.Container); err != nil {
		t.Fatalf("container.json: %v", err)
	}
	if data, ok := part["sandbox.json"]; ok {
		if err := protojson.Unmarshal(data, in.Sandbox); err != nil {
			t.Fatalf("sandbox.json: %v", err)
		}
	}
	if data, ok := part["input.json"]; ok {
		if err := json.Unmarshal(data, &rest); err != nil {
			t.Fatalf("input.json: %v", err)
		}
	}
	in.Host, in.Image, in.Namespaces, in.Files = rest.Host, rest.Image, rest.Namespaces, rest.Files
	in.Volumes, in.IDs = rest.Volumes, rest.IDs
	in.User = spec.User{Groups: []uint32{0}, Home: "/root"}
	if rest.User != nil {
		in.User = *rest.User
	}
	if in.Namespaces == nil {
		in.Namespaces = map[string]string{"network": "/ns/net", "uts": "/ns/uts", "ipc": "/ns/ipc"}
	}
	for i, m := range in.Container.Mounts {
		resolved := spec.Mount{Mount: m, Source: m.HostPath}
		if i < len(rest.Sources) {
			resolved.Shared, resolved.Slave = rest.Sources[i].Shared, rest.Sources[i].Slave
			if rest.Sources[i].Source != "" {
				resolved.Source = rest.Sources[i].Source
			}
		}
		in.Mounts = append(in.Mounts, resolved)
	}
	for _, d := range rest.Devices {
		in.Devices = append(in.Devices, spec.Device{LinuxDevice: d.LinuxDevice, Source: d.Source, Access: d.Access})
	}
	in.SeccompProfile = rest.SeccompProfile
	return in
}
