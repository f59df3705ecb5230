package server

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// FuzzExtra reads arbitrary bytes as the server's part of a record: what can be read can be shown,
// and stays the same when it is written again. A record of a later version is not read.
func FuzzExtra(f *testing.F) {
	config := forever("a")
	config.Mounts = []*cri.Mount{{ContainerPath: "/i", Image: &cri.ImageSpec{Image: testImage}}, {ContainerPath: "/h", HostPath: "/h"}}
	c := &containerRecord{config: config, imageID: testID, imageRef: testDigest, imageUser: &cri.ContainerUser{}, resources: config.Linux.Resources, volumes: []string{"v"}, original: config.Image}
	c.noteMountImage(0, testID)
	sb := &sandboxRecord{config: pod("a"), handler: "h", ips: []string{"10.0.0.1"}, resources: &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: "x"}}
	for _, r := range []interface{ encode() ([]byte, error) }{c, sb} {
		data, err := r.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, text := range []string{`{"Version":1}`, `{"Version":2}`, `{"Version":1,"MountImages":{"7":"x"}}`, `{"Version":1,"MountImages":{"-1":"x"}}`, `null`, `[]`, ``, `{"Version":1,"Config":"AA=="}`, `{"Version":1,"IPs":[""]}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var head struct{ Version int }
		later := json.Unmarshal(data, &head) == nil && head.Version > extraVersion
		if sb, err := decodeSandbox(data); err == nil {
			if later {
				t.Error("a sandbox of a later version is read")
			}
			_ = proto.Size(sb.config)
			again, err := sb.encode()
			if err != nil {
				t.Fatal(err)
			}
			if back, err := decodeSandbox(again); err != nil || !proto.Equal(back.config, sb.config) || back.handler != sb.handler || !reflect.DeepEqual(back.labels, sb.labels) {
				t.Errorf("%s is read as something else (%v)", again, err)
			}
		}
		if c, err := decodeContainer(data); err == nil {
			if later {
				t.Error("a container of a later version is read")
			}
			_, _ = c.image(), c.mounts()
			again, err := c.encode()
			if err != nil {
				t.Fatal(err)
			}
			if back, err := decodeContainer(again); err != nil || !proto.Equal(back.config, c.config) || back.imageID != c.imageID || back.signal != c.signal {
				t.Errorf("%s is read as something else (%v)", again, err)
			}
		}
	})
}

// FuzzRestore creates a container from an archive with arbitrary metadata: it succeeds, or the
// error blames the request and nothing is left.
func FuzzRestore(f *testing.F) {
	if _, err := os.Stat("/dev/shm"); err == nil {
		f.Setenv("TMPDIR", "/dev/shm") // a machine for each input
	}
	spec, err := json.Marshal(specs.Spec{
		Version: specs.Version, Root: &specs.Root{Path: "/r"}, Process: &specs.Process{Args: []string{"/testbin", "sleep", "for-ever"}, Cwd: "/", Capabilities: &specs.LinuxCapabilities{}},
		Linux:  &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace, Path: "/n"}}, Resources: &specs.LinuxResources{}, Seccomp: &specs.LinuxSeccomp{}},
		Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/a", Type: "bind", Source: "/a", Options: []string{"rbind"}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	config := []byte(`{"id":"1","name":"a","rootfsImageRef":"` + testID + `","rootfsImageName":"` + testImage + `","runtime":"runc"}`)
	for _, own := range []string{"", `{"Version":1}`, `{"Version":9}`, `{`, `null`, `{"Version":1,"Config":"AA==","Extra":null}`} {
		f.Add(config, spec, []byte(own), []byte(`["/a","../b"]`))
	}
	for _, odd := range []string{``, `null`, `{}`, `[]`, `{"process":{"args":["a"]},"linux":{},"root":{}}`, `{"process":{"args":["a"],"capabilities":null,"rlimits":[{}],"user":{}},"linux":{"namespaces":[{}],"devices":[{}],"resources":{"devices":[{}]}},"root":{},"mounts":[{}],"hooks":{}}`} {
		f.Add(config, []byte(odd), []byte(nil), []byte(`null`))
		f.Add([]byte(odd), spec, []byte(nil), []byte(odd))
	}
	f.Fuzz(func(t *testing.T, config, spec, own, deleted []byte) {
		var bugs panics
		n := &node{machine: ocitest.NewMachine(t), store: newFakeImages(t), net: &fakeNetwork{}, log: slog.New(&bugs)}
		n.start(t)
		defer n.stop()
		sb := n.run(t, pod("web"))
		before := n.left()
		files := [][2]string{{"checkpoint/inventory.img", "CRIU's"}, {checkpoint.ConfigDump, string(config)}, {checkpoint.SpecDump, string(spec)}, {checkpoint.DeletedFiles, string(deleted)}}
		if len(own) > 0 {
			files = append(files, [2]string{checkpoint.CrispDump, string(own)})
		}
		archive := filepath.Join(t.TempDir(), "c.tar")
		if err := os.WriteFile(archive, entries(t, files...), 0o600); err != nil {
			t.Fatal(err)
		}
		c := forever("a")
		c.Args, c.Image = nil, &cri.ImageSpec{Image: archive}
		created, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: c})
		switch code := codeIn.FindStringSubmatch(fmt.Sprint(err)); {
		case err == nil:
			if _, err := n.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: created.ContainerId}); err != nil {
				t.Error(err)
			}
		case code == nil || code[1] != "InvalidArgument" && code[1] != "NotFound":
			t.Errorf("create: %v", err)
		}
		if after := n.left(); !slices.Equal(before, after) {
			t.Errorf("before %v\nafter %v", before, after)
		}
		if text := bugs.said(); text != "" {
			t.Error(text)
		}
	})
}
