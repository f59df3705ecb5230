package image_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// An artifact is files by name, which can be a volume and nothing else.
func TestArtifact(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	ref := reg.host + "/model:v1"
	top := reg.pushArtifact("model", "v1", "weights.bin", "1 2 3", "conf/a.json", "{}", "", "nameless", "conf/b.json", "[]")
	img := p.pull(ref)
	if !img.Artifact || img.ID != top.String() || img.Size == 0 || img.Tags[0] != ref {
		t.Errorf("image is %+v", img)
	}
	dir, err := p.store.RootFS().Mount(t.Context(), "volume", img.ID, rootfs.MountOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"weights.bin": "1 2 3", "conf/a.json": "{}", "conf/b.json": "[]"} {
		if got := read(t, dir, name); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err == nil {
		t.Error("the volume can be written to")
	}
	if _, err := p.store.RootFS().Mount(t.Context(), "root", img.ID, rootfs.MountOptions{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("as a root file system: %v, want an error of kind %v", err, fault.Invalid)
	}

	// The next version shares what has not changed.
	reg.asked("")
	reg.pushArtifact("model", "v2", "weights.bin", "1 2 3", "conf/a.json", "{1}")
	p.pull(reg.host + "/model:v2")
	if got := reg.asked("/blobs/"); len(got) != 1 {
		t.Errorf("fetched %v", got)
	}
	p.close()
	p.open(image.Options{})
	if got, err := p.store.Get(ref); err != nil || !got.Artifact {
		t.Errorf("after a restart it is %+v (err %v)", got, err)
	}

	for tag, name := range map[string]string{"up": "../x", "abs": "/etc/x", "dot": ".", "nul": "a\x00b", "long": "a/" + strings.Repeat("x", 256), "deep": strings.Repeat("x/", 1500) + "x"} {
		reg.pushArtifact("model", tag, name, "x")
		if _, err := p.store.Pull(t.Context(), reg.host+"/model:"+tag, registry.Caller{}); !errors.Is(err, fault.Invalid) {
			t.Errorf("file %q: %v, want an error of kind %v", name, err, fault.Invalid)
		}
	}
}

// pushArtifact puts files, names and contents by turns, into repo under tag.
func (r *fakeRegistry) pushArtifact(repo, tag string, files ...string) digest.Digest {
	r.t.Helper()
	r.pushBlob(repo, []byte("{}"))
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		ArtifactType: "application/vnd.example", Config: v1.DescriptorEmptyJSON}
	for i := 0; i < len(files); i += 2 {
		data := []byte(files[i+1])
		r.pushBlob(repo, data)
		l := v1.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(data), Size: int64(len(data))}
		if files[i] != "" {
			l.Annotations = map[string]string{v1.AnnotationTitle: files[i]}
		}
		m.Layers = append(m.Layers, l)
	}
	data, err := json.Marshal(m)
	if err != nil {
		r.t.Fatal(err)
	}
	r.put("/v2/"+repo+"/manifests/"+tag, m.MediaType, data)
	return digest.FromBytes(data)
}
