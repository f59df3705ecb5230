package image_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
)

// An artifact is a set of named files, which can be mounted as a volume and not as a root
// file system.
func TestArtifact(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	ref := reg.Host + "/model:v1"
	top := reg.PushArtifact("model", "v1", "weights.bin", "1 2 3", "conf/a.json", "{}", "", "nameless", "conf/b.json", "[]")
	img := p.Pull(ref)
	if !img.Artifact || img.ID != top.String() || img.Size == 0 || img.Tags[0] != ref {
		t.Errorf("image is %+v", img)
	}
	dir, err := p.Store.RootFS().Mount(t.Context(), "volume", img.ID, rootfs.MountOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"weights.bin": "1 2 3", "conf/a.json": "{}", "conf/b.json": "[]"} {
		if got := imagetest.ReadFile(t, dir, name); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err == nil {
		t.Error("the volume can be written to")
	}
	if _, err := p.Store.RootFS().Mount(t.Context(), "root", img.ID, rootfs.MountOptions{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("as a root file system: %v, want an error of kind %v", err, fault.Invalid)
	}

	// The next version shares the files that have not changed.
	reg.Asked("")
	reg.PushArtifact("model", "v2", "weights.bin", "1 2 3", "conf/a.json", "{1}")
	p.Pull(reg.Host + "/model:v2")
	if got := reg.Asked("/blobs/"); len(got) != 1 {
		t.Errorf("fetched %v", got)
	}
	p.Close()
	p.Open(image.Options{})
	if got, err := p.Store.Get(ref); err != nil || !got.Artifact {
		t.Errorf("after a restart it is %+v (err %v)", got, err)
	}

	for tag, name := range map[string]string{"up": "../x", "abs": "/etc/x", "dot": ".", "nul": "a\x00b", "long": "a/" + strings.Repeat("x", 256), "deep": strings.Repeat("x/", 1500) + "x"} {
		reg.PushArtifact("model", tag, name, "x")
		if _, err := p.Store.Pull(t.Context(), reg.Host+"/model:"+tag, registry.Caller{}); !errors.Is(err, fault.Invalid) {
			t.Errorf("file %q: %v, want an error of kind %v", name, err, fault.Invalid)
		}
	}
}
