package spec_test

import (
	"slices"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/server/spec"
)

// A mount at /dev, by whatever path, replaces what is usually mounted in it, also where it has a
// link, such as the host's /dev/shm to /run/shm.
func TestMountAtDevReplacesWhatIsBelow(t *testing.T) {
	links := map[string]string{"/dev": "/devices", "/dev/shm": "/run/shm"}
	mount := &cri.Mount{ContainerPath: "/devices", HostPath: "/dev"}
	built, err := spec.Build(spec.Input{
		Container: &cri.ContainerConfig{Command: []string{"x"}, Mounts: []*cri.Mount{mount}}, Sandbox: &cri.PodSandboxConfig{},
		Root: "/root", Files: spec.Files{Shm: "/shm"}, Mounts: []spec.Mount{{Mount: mount, Source: "/dev", Place: "/devices"}},
		Resolve: func(name string) string {
			if to, ok := links[name]; ok {
				return to
			}
			return name
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range built.Mounts {
		got = append(got, m.Destination)
	}
	if want := []string{"/proc", "/sys", "/devices", "/sys/fs/cgroup"}; !slices.Equal(got, want) {
		t.Errorf("mounts are at %q, want %q", got, want)
	}
}
