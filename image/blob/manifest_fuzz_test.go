package blob

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/testheap"
)

// FuzzManifest reads any manifest, of any type, with any config: it is refused with an
// error of the right kind, or each of its layers can be fetched and verified against a
// digest. It takes memory in proportion: an empty layer in a list has three bytes.
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
	f.Add([]byte(strings.Replace(image, layer, strings.Repeat("{},", 20_000)+layer, 1)), []byte(config), v1.MediaTypeImageManifest)
	f.Add([]byte(strings.Replace(index, `[{`, "["+strings.Repeat("{},", 20_000)+"{", 1)), []byte(config), v1.MediaTypeImageIndex)
	f.Add([]byte(image), []byte(`{"history": [`+strings.Repeat("{},", 20_000)+`{}], "rootfs": {"diff_ids": [`+strings.Repeat(`"",`, 20_000)+`""]}}`), v1.MediaTypeImageManifest)
	f.Add([]byte(image), []byte(strings.Repeat("[", 9_000)), v1.MediaTypeImageManifest)
	f.Fuzz(func(t *testing.T, data, config []byte, kind string) {
		begin := testheap.Allocated()
		defer func() {
			testheap.Bound{Base: 256 << 10, PerByte: 700}.Check(t, "bytes allocated", testheap.Allocated()-begin, len(data)+len(config))
		}()
		if kind == "" {
			kind = manifest.GuessMIMEType(data)
		}
		if manifest.MIMETypeIsMultiImage(kind) {
			d, err := ChoosePlatform(data, kind, &types.SystemContext{OSChoice: "linux", ArchitectureChoice: "amd64"})
			if err != nil && !errors.Is(err, fault.Invalid) && !errors.Is(err, fault.NotFound) {
				t.Errorf("list: error is %v, of kind %v", err, fault.KindOf(err))
			}
			if err == nil && d == nil {
				t.Error("neither a digest nor an error")
			}
			return
		}
		m, err := ReadManifest(data, kind)
		if err == nil && !m.Artifact {
			_, err = DiffIDs(config, m.Layers)
		}
		if err != nil {
			if !errors.Is(err, fault.Invalid) && !errors.Is(err, fault.NotFound) {
				t.Errorf("error is %v, of kind %v", err, fault.KindOf(err))
			}
			return
		}
		for _, b := range m.Layers {
			if _, err := NewVerifier(bytes.NewReader(nil), b); err != nil || b.Digest == "" || b.Size < 0 {
				t.Errorf("layer %+v cannot be verified: %v", b, err)
			}
			if m.Artifact && (!filepath.IsLocal(b.File) || strings.Contains(b.File, "\x00")) {
				t.Errorf("file %q of an artifact", b.File)
			}
		}
		for key := range CheckpointAnnotations(data) {
			if len(key) > maxAnnotation {
				t.Errorf("an annotation of %d bytes is kept", len(key))
			}
		}
	})
}
