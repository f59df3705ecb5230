package blob

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
)

// MaxNesting is how deep an index may be nested in an index. Real ones are not nested.
const MaxNesting = 3

// A Manifest lists the parts of one image, or one artifact.
type Manifest struct {
	Data     []byte // as received
	Artifact bool   // files instead of a root file system; then Config is unused
	Config   Blob
	Layers   []Blob // lowest first; of an artifact, those that are files; of an image, some may be WebAssembly modules
}

// KindOf returns the media type of the manifest data, which was served as kind. A simple
// registry, files behind a web server, guesses a type from the file's name: then the document
// decides. If it is not a manifest the error is fault.Unavailable: a login page is not the
// image's fault.
func KindOf(data []byte, kind string) (string, error) {
	if !json.Valid(data) {
		return "", fault.Unavailable.Errorf("the response is not a manifest, but %d bytes of the type %.100q", len(data), kind)
	}
	if kind != "application/json" && manifest.NormalizedMIMEType(kind) == kind {
		return kind, nil
	}
	guess := manifest.GuessMIMEType(data)
	if guess == "" {
		return "", fault.Unavailable.Errorf("the response is not a manifest: it has the type %.100q and does not name another", kind)
	}
	return guess, nil
}

// ReadManifest parses the manifest data, whose media type is kind. The error is fault.Invalid
// for a manifest that cannot be used.
func ReadManifest(data []byte, kind string) (Manifest, error) {
	switch manifest.NormalizedMIMEType(kind) {
	case manifest.DockerV2Schema1MediaType, manifest.DockerV2Schema1SignedMediaType:
		return Manifest{}, fault.Invalid.Errorf("manifests of schema 1 are not supported")
	}
	parsed, err := manifest.FromBlob(data, kind)
	if err != nil {
		return Manifest{}, fault.Invalid.Errorf("manifest: %s", brief(err))
	}
	m := Manifest{Data: data}
	if _, ok := parsed.(*manifest.OCI1); ok && isArtifact(parsed.ConfigInfo().MediaType) {
		return m, m.readArtifact(parsed)
	}
	m.Config = Blob{BlobInfo: parsed.ConfigInfo()}
	if err := m.Config.Digest.Validate(); err != nil {
		return m, fault.Invalid.Errorf("digest of the config: %w", err)
	}
	if m.Config.Digest.Algorithm() != digest.SHA256 {
		return m, fault.Invalid.Errorf("digest of the config is a %s, not a sha256", m.Config.Digest.Algorithm())
	}
	var infos []types.BlobInfo
	for _, l := range parsed.LayerInfos() {
		infos = append(infos, l.BlobInfo)
		m.Layers = append(m.Layers, Blob{BlobInfo: l.BlobInfo})
	}
	if err := m.nameModules(infos); err != nil {
		return m, err
	}
	return m, m.checkBlobs()
}

// brief returns the beginning of the text of err: the library quotes all of a manifest that it
// cannot parse, which may be megabytes.
func brief(err error) string { return fmt.Sprintf("%.300s", err) }

// checkBlobs refuses descriptors against which content cannot be verified.
func (m *Manifest) checkBlobs() error {
	for i, b := range m.Layers {
		if err := b.Digest.Validate(); err != nil {
			return fault.Invalid.Errorf("digest %q of layer %d: %w", b.Digest, i, err)
		}
		if b.Size < 0 {
			return fault.Invalid.Errorf("layer %d has a size of %d", i, b.Size)
		}
	}
	if m.Config.Size < 0 {
		return fault.Invalid.Errorf("the config has a size of %d", m.Config.Size)
	}
	return nil
}

// annotationPrefixes are the prefixes of the annotations that are kept: they mark an image as a
// container's checkpoint and describe the container.
var annotationPrefixes = []string{"org.criu.checkpoint.", "io.kubernetes.cri-o.annotations.checkpoint."}

// maxAnnotation bounds the kept value of one annotation, in bytes: a manifest may have
// megabytes.
const maxAnnotation = 4096

// CheckpointAnnotations returns the annotations in the manifest data that describe the container
// it is a checkpoint of; nil = none.
func CheckpointAnnotations(data []byte) map[string]string {
	var m v1.Manifest
	if json.Unmarshal(data, &m) != nil {
		return nil // of another kind
	}
	var kept map[string]string
	for key, value := range m.Annotations {
		for _, prefix := range annotationPrefixes {
			if strings.HasPrefix(key, prefix) && len(key)+len(value) <= maxAnnotation {
				if kept == nil {
					kept = make(map[string]string)
				}
				kept[key] = value
			}
		}
	}
	return kept
}
