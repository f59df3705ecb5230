package layer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/fault"
)

// texts is an origin with strings as blobs.
type texts struct{}

func (texts) Open(context.Context, blob.Blob) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("text")), nil
}
func (texts) Has(context.Context, blob.Blob) error                   { return nil }
func (texts) Repository() string                                     { return "" }
func (texts) Reject(_ context.Context, _ blob.Blob, why error) error { return why }

// FuzzArtifactNames fetches the files of an artifact with any names: each is below the
// directory, or the error blames the artifact.
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
			m, err := blob.ReadManifest(titled(t, name), v1.MediaTypeImageManifest)
			if err != nil {
				if !errors.Is(err, fault.Invalid) {
					t.Errorf("%q: error is %v, of kind %v", name, err, fault.KindOf(err))
				}
				continue
			}
			b := m.Layers[0]
			into := filepath.Join(dir, "layer") // each file of an artifact is a layer
			if err := os.Mkdir(into, 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := unpackFile(t.Context(), texts{}, b, into, new(growth)); err != nil {
				t.Errorf("%q: %v", name, err)
			} else if got, err := os.ReadFile(filepath.Join(into, b.File)); err != nil || string(got) != "text" {
				t.Errorf("%q holds %q, %v", name, got, err)
			}
			if err := os.RemoveAll(into); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(secret); err != nil || string(got) != "secret" {
			t.Errorf("the file outside holds %q, %v", got, err)
		}
		if entries, _ := os.ReadDir(top); len(entries) != 2 {
			t.Errorf("beside the directory there is %v", entries)
		}
	})
}

// titled returns the manifest of an artifact with one file.
func titled(t *testing.T, name string) []byte {
	data, err := json.Marshal(v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: v1.Descriptor{MediaType: "application/vnd.model", Digest: v1.DescriptorEmptyJSON.Digest, Size: 2},
		Layers: []v1.Descriptor{{MediaType: "text/plain", Digest: digest.FromString("text"), Size: 4, Annotations: map[string]string{v1.AnnotationTitle: name}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}
