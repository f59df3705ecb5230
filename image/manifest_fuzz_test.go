package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"

	"github.com/crisp-cri/crisp/internal/fault"
)

// FuzzManifest takes any manifest, of any type, with any config: it is refused, by whose
// mistake it was, or each of its layers can be fetched and held against a digest.
func FuzzManifest(f *testing.F) {
	const (
		sum   = "sha256:4444444444444444444444444444444444444444444444444444444444444444"
		layer = `{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": "` + sum + `", "size": 7, "annotations": {"org.opencontainers.image.title": "a/b"}}`
	)
	image := `{"schemaVersion": 2, "mediaType": "` + v1.MediaTypeImageManifest + `", "config": {"mediaType": "` + v1.MediaTypeImageConfig + `", "digest": "` + sum + `", "size": 2}, "layers": [` + layer + `]}`
	config := `{"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["` + sum + `"]}, "config": {"User": "a"}}`
	index := `{"schemaVersion": 2, "mediaType": "` + v1.MediaTypeImageIndex + `", "manifests": [{"mediaType": "` + v1.MediaTypeImageManifest + `", "digest": "` + sum + `", "size": 3, "platform": {"architecture": "amd64", "os": "linux"}}]}`
	for _, m := range []string{
		image, index, strings.Replace(image, v1.MediaTypeImageConfig, "application/vnd.model", 1), strings.Replace(image, sum, "sha512:12", 1), strings.Replace(image, "a/b", "../b", 1),
		strings.Replace(image, layer, "null, {}, "+layer, 1), `{"schemaVersion": 2, "config": null, "layers": null}`, `{"manifests": [null, {}]}`, `null`, `[]`, ``,
		`{"schemaVersion": 1, "fsLayers": [{}], "history": [{"v1Compatibility": "{}"}], "signatures": null}`, strings.Replace(image, `"size": 7`, `"size": -7`, 1),
	} {
		for _, kind := range []string{v1.MediaTypeImageManifest, v1.MediaTypeImageIndex, manifest.DockerV2Schema2MediaType, manifest.DockerV2ListMediaType, ""} {
			f.Add([]byte(m), []byte(config), kind)
		}
	}
	f.Add([]byte(image), []byte(`{"rootfs": {"diff_ids": ["x"]}}`), v1.MediaTypeImageManifest)
	f.Add([]byte(image), []byte(`null`), v1.MediaTypeImageManifest)
	f.Fuzz(func(t *testing.T, data, config []byte, kind string) {
		if kind == "" {
			kind = manifest.GuessMIMEType(data)
		}
		if manifest.MIMETypeIsMultiImage(kind) {
			d, err := platform(data, kind, &types.SystemContext{OSChoice: "linux", ArchitectureChoice: "amd64"})
			if err != nil && !errors.Is(err, fault.Invalid) && !errors.Is(err, fault.NotFound) {
				t.Errorf("list: error is %v, of kind %v", err, fault.KindOf(err))
			}
			if err == nil && d == nil {
				t.Error("neither a digest nor an error")
			}
			return
		}
		var c choice
		err := c.read(data, kind)
		if err == nil && !c.artifact {
			_, err = diffIDs(config, len(c.layers))
		}
		if err != nil {
			if !errors.Is(err, fault.Invalid) && !errors.Is(err, fault.NotFound) {
				t.Errorf("error is %v, of kind %v", err, fault.KindOf(err))
			}
			return
		}
		for _, b := range c.layers {
			if _, err := newVerifier(bytes.NewReader(nil), b); err != nil || b.Digest == "" || b.Size < 0 {
				t.Errorf("layer %+v cannot be verified: %v", b, err)
			}
			if c.artifact && (!filepath.IsLocal(b.file) || strings.Contains(b.file, "\x00")) {
				t.Errorf("file %q of an artifact", b.file)
			}
		}
		for key := range keptAnnotations(data) {
			if len(key) > maxAnnotation {
				t.Errorf("an annotation of %d bytes is kept", len(key))
			}
		}
	})
}

// texts is an origin whose blobs are texts.
type texts struct{}

func (texts) open(context.Context, blob) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("text")), nil
}
func (texts) has(context.Context, blob) error { return nil }
func (texts) repository() string              { return "" }

// FuzzArtifactNames fetches the files of an artifact by any names: each is below the
// directory, or it is the artifact's fault.
func FuzzArtifactNames(f *testing.F) {
	for _, names := range []string{"a", "a/b\na/c", "a\na/b", "../secret", "a/../../secret", "/secret", ".", "a/.", "..", "a//b\na/b", "a\x00b", strings.Repeat("a", 256), strings.Repeat("a/", 2000), ".wh.a", "x\nx"} {
		f.Add(names)
	}
	f.Fuzz(func(t *testing.T, names string) {
		top := t.TempDir()
		dir, secret := filepath.Join(top, "dir"), filepath.Join(top, "secret")
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(secret, []byte("secret"), 0o600)); err != nil {
			t.Fatal(err)
		}
		for name := range strings.SplitSeq(names, "\n") {
			var c choice
			if err := c.readArtifact(titled{name: name}); err != nil {
				if !errors.Is(err, fault.Invalid) {
					t.Errorf("%q: error is %v, of kind %v", name, err, fault.KindOf(err))
				}
				continue
			}
			b := c.layers[0]
			b.Size = 4
			into := filepath.Join(dir, "layer") // each file is a layer of its own
			if err := os.Mkdir(into, 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := unpackFile(t.Context(), texts{}, b, into); err != nil {
				t.Errorf("%q: %v", name, err)
			} else if got, err := os.ReadFile(filepath.Join(into, b.file)); err != nil || string(got) != "text" {
				t.Errorf("%q holds %q, %v", name, got, err)
			}
			if err := os.RemoveAll(into); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(secret); err != nil || string(got) != "secret" {
			t.Errorf("the file beside it holds %q, %v", got, err)
		}
		if entries, _ := os.ReadDir(top); len(entries) != 2 {
			t.Errorf("beside the directory there is %v", entries)
		}
	})
}

// titled is the manifest of an artifact with one file.
type titled struct {
	manifest.Manifest // the rest is not asked
	name              string
}

func (m titled) LayerInfos() []manifest.LayerInfo {
	return []manifest.LayerInfo{{BlobInfo: types.BlobInfo{Digest: digest.FromString("text"), Annotations: map[string]string{v1.AnnotationTitle: m.name}}}}
}
