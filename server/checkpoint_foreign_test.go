package server

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/server/spec"
)

// entries returns a tar archive of files in this order; a name that ends in / is a directory.
func entries(t *testing.T, files ...[2]string) []byte {
	t.Helper()
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, f := range files {
		hdr := &tar.Header{Name: f[0], Mode: 0o600, Size: int64(len(f[1])), Typeflag: tar.TypeReg}
		if f[0][len(f[0])-1] == '/' {
			hdr.Typeflag, hdr.Mode = tar.TypeDir, 0o700
		}
		err := tw.WriteHeader(hdr)
		if err == nil {
			_, err = tw.Write([]byte(f[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Archives in the layout of CRI-O 1.35 and containerd 2.3 are restored, with their ways to
// name an image, their extra files, and the mount that CRI-O adds.
func TestCreateFromForeignArchive(t *testing.T) {
	n := newNode(t)
	config := forever("app")
	sandbox := n.run(t, pod("web"))
	id := n.begin(t, sandbox, config)
	c, err := n.runtime.Container(id)
	if err != nil {
		t.Fatal(err)
	}
	images := [2]string{"checkpoint/inventory.img", "CRIU's"}
	spec := func(annotations map[string]string, mounts ...specs.Mount) string {
		s := *c.Config().Spec
		s.Annotations, s.Mounts = annotations, append(slices.Clone(s.Mounts), mounts...)
		return asJSON(t, s)
	}
	diff := entries(t, [2]string{"written", "text"})
	var layer bytes.Buffer
	z := gzip.NewWriter(&layer)
	z.Write(entries(t, [2]string{"written", "text"}, [2]string{".wh.removed", ""}))
	z.Close()
	for name, archive := range map[string][]byte{
		"CRI-O": entries(t,
			[2]string{"stats-dump", "figures"}, [2]string{"dump.log", "log"}, [2]string{"checkpoint/", ""}, images,
			[2]string{"config.dump", asJSON(t, checkpoint.Container{
				ID: id, Name: "k8s_app_web_default_uid_0", RootfsImage: testImage, RootfsImageName: testImage, Runtime: "crun",
				RootfsImageRef: testID[len("sha256:"):], CreatedTime: time.Now(), CheckpointedAt: time.Now(),
			})},
			[2]string{"spec.dump", spec(map[string]string{"io.container.manager": "cri-o"},
				specs.Mount{Destination: "/run/.containerenv", Type: "bind", Source: "/run/containers/storage/x/.containerenv", Options: []string{"rw", "bind"}})},
			[2]string{"bind.mounts", `[{"source":"/etc/hosts","destination":"/etc/hosts","file_type":"file","permissions":420}]`},
			[2]string{"rootfs-diff.tar", string(diff)}, [2]string{"deleted.files", "[]"}, [2]string{"io.kubernetes.cri-o.LogPath", "log"}),
		"containerd": entries(t,
			[2]string{"checkpoint/", ""}, images,
			[2]string{"config.dump", asJSON(t, checkpoint.Container{
				ID: id, RootfsImage: testImage, RootfsImageName: testImage, RootfsImageRef: testDigest, Runtime: "io.containerd.runc.v2",
				CreatedTime: time.Now(), CheckpointedAt: time.Now(),
			})},
			[2]string{"container.log", "log"}, [2]string{"dump.log", "log"}, [2]string{"rootfs-diff.tar", layer.String()},
			[2]string{"spec.dump", spec(map[string]string{"io.kubernetes.cri.container-name": "app"})},
			[2]string{"stats-dump", "figures"}, [2]string{"status", `{"Version":"v1"}`}, [2]string{"status.dump", `{"id":"x"}`}),
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "c.tar")
			if err := os.WriteFile(file, archive, 0o600); err != nil {
				t.Fatal(err)
			}
			next := proto.Clone(config).(*cri.ContainerConfig)
			next.Metadata.Name = name
			next.Image = &cri.ImageSpec{Image: file}
			before := len(n.machine.Calls(wire.MethodRestore))
			again := n.create(t, sandbox, next)
			if st := n.status(t, again); st.ImageId != testID {
				t.Errorf("status is of %v, %s", st.Image, st.ImageId)
			}
			if data, err := os.ReadFile(filepath.Join(n.store.dir, again, "written")); err != nil || !bytes.Contains(data, []byte("text")) {
				t.Errorf("its root file system has %q (err %v)", data, err)
			}
			if _, err := n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: again}); err != nil {
				t.Fatal(err)
			}
			if after := len(n.machine.Calls(wire.MethodRestore)); after != before+1 {
				t.Errorf("%d restores, want 1", after-before)
			}
			c, err := n.runtime.Container(again)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(c.Config().Spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/run/.containerenv" })
			if (i >= 0) != (name == "CRI-O") {
				t.Errorf("mounts are %v", c.Config().Spec.Mounts)
			}
			if i >= 0 {
				if info, err := os.Stat(c.Config().Spec.Mounts[i].Source); err != nil || info.Size() > 0 {
					t.Errorf("in its place is mounted %v (err %v), want an empty file", info, err)
				}
			}
		})
	}
}

// An archive can claim to be from another runtime. That gives its container no more privileges than
// the request does.
func TestCreateFromForeignArchiveWithMoreRights(t *testing.T) {
	n := newNode(t)
	n.server.Reconfigure(Options{SpecHost: spec.Host{Seccomp: true}})
	config := forever("app")
	config.Linux.SecurityContext = &cri.LinuxContainerSecurityContext{
		RunAsUser: &cri.Int64Value{Value: 7}, NoNewPrivs: true, ReadonlyRootfs: true,
		Seccomp:      &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
		Capabilities: &cri.Capability{DropCapabilities: []string{"NET_RAW"}},
		MaskedPaths:  []string{"/proc/kcore"}, ReadonlyPaths: []string{"/proc/sys"},
	}
	config.Mounts = []*cri.Mount{{HostPath: t.TempDir(), ContainerPath: "/volume", Readonly: true}}
	sandbox := n.run(t, pod("web"))
	id := n.begin(t, sandbox, config)
	c, err := n.runtime.Container(id)
	if err != nil {
		t.Fatal(err)
	}
	attempt := uint32(0)
	archive := func(change func(*specs.Spec)) string {
		var s specs.Spec
		if err := json.Unmarshal([]byte(asJSON(t, c.Config().Spec)), &s); err != nil {
			t.Fatal(err)
		}
		change(&s)
		file := filepath.Join(t.TempDir(), "c.tar")
		data := entries(t, [2]string{"checkpoint/", ""}, [2]string{"checkpoint/inventory.img", "CRIU's"},
			[2]string{"config.dump", asJSON(t, checkpoint.Container{ID: id, RootfsImage: testImage, RootfsImageName: testImage, RootfsImageRef: testDigest, CreatedTime: time.Now(), CheckpointedAt: time.Now()})},
			[2]string{"spec.dump", asJSON(t, s)})
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	next := func(file string) *cri.CreateContainerRequest {
		attempt++
		again := proto.Clone(config).(*cri.ContainerConfig)
		again.Metadata.Attempt, again.Image = attempt, &cri.ImageSpec{Image: file}
		return &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: again}
	}
	for what, more := range map[string]func(*specs.Spec){
		"user":           func(s *specs.Spec) { s.Process.User.UID = 0 },
		"group":          func(s *specs.Spec) { s.Process.User.GID = 8 },
		"further groups": func(s *specs.Spec) { s.Process.User.AdditionalGids = []uint32{0, 9} },
		"capability": func(s *specs.Spec) {
			s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
		},
		"ambient":        func(s *specs.Spec) { s.Process.Capabilities.Ambient = []string{"CAP_NET_RAW"} },
		"new privileges": func(s *specs.Spec) { s.Process.NoNewPrivileges = false },
		"filter":         func(s *specs.Spec) { s.Linux.Seccomp = nil },
		"open filter":    func(s *specs.Spec) { s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow} },
		"masked":         func(s *specs.Spec) { s.Linux.MaskedPaths = nil },
		"read-only":      func(s *specs.Spec) { s.Linux.ReadonlyPaths = nil },
		"root":           func(s *specs.Spec) { s.Root.Readonly = false },
		"device": func(s *specs.Spec) {
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/sda", Type: "b", Major: 8})
		},
		"namespace": func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[:1] },
		"volume": func(s *specs.Spec) {
			for i, m := range s.Mounts {
				if m.Destination == "/volume" {
					s.Mounts[i].Options = slices.DeleteFunc(slices.Clone(m.Options), func(o string) bool { return o == "ro" || o == "rro" })
				}
			}
		},
	} {
		_, err := n.CreateContainer(t.Context(), next(archive(more)))
		wantCode(t, what, err, "InvalidArgument")
	}
	less := func(s *specs.Spec) { s.Process.Capabilities.Bounding, s.Linux.Seccomp.Syscalls = nil, nil }
	if _, err := n.CreateContainer(t.Context(), next(archive(less))); err != nil {
		t.Errorf("a checkpoint with fewer rights: %v", err)
	}
}

// Any user who can create a pod can name an image, and CRIU processes the content of a restored one
// as root. Only the node's administrator can allow that.
func TestCheckpointImageIsNotRestoredUnasked(t *testing.T) {
	n := newNode(t)
	sandbox := n.run(t, pod("web"))
	n.store.mu.Lock()
	n.store.list = append(n.store.list, image.Image{
		ID: "sha256:" + strings.Repeat("c", 64), Tags: []string{"evil:latest"},
		Annotations: map[string]string{"org.criu.checkpoint.container.name": "x"},
	})
	n.store.mu.Unlock()
	before := slices.Sorted(slices.Values(n.left()))
	config := forever("app")
	config.Image = &cri.ImageSpec{Image: "evil:latest"}
	req := &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: config}
	_, err := n.CreateContainer(t.Context(), req)
	wantCode(t, "a checkpoint image", err, "FailedPrecondition")
	if err != nil && !strings.Contains(err.Error(), "restore_from_images") {
		t.Errorf("the error does not name the key: %v", err)
	}
	if left := slices.Sorted(slices.Values(n.left())); !slices.Equal(left, before) {
		t.Errorf("left behind: %v, there was %v", left, before)
	}
	n.server.Reconfigure(Options{RestoreFromImages: true})
	_, err = n.CreateContainer(t.Context(), req) // the fake cannot mount it
	if err == nil || strings.Contains(err.Error(), "restore_from_images") {
		t.Errorf("where it is allowed: %v, want that it is looked into", err)
	}
	config.Image = &cri.ImageSpec{Image: testImage}
	n.create(t, sandbox, config)
}
