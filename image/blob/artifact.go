package blob

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
)

// fileAnnotations are the annotations by which a layer of an artifact names its file: oras's,
// and that of CNCF's model specification.
var fileAnnotations = []string{v1.AnnotationTitle, "org.cncf.model.filepath"}

// maxFiles bounds the files of an artifact: each is a layer of an overlay, which
// takes 500 (OVL_MAX_STACK).
const maxFiles = 400

// isArtifact reports whether the media type of an OCI manifest's config is not an image's. An
// artifactType would decide nothing: an image may have one.
func isArtifact(config string) bool {
	switch config {
	case "", v1.MediaTypeImageConfig, manifest.DockerV2Schema2ConfigMediaType:
		return false
	}
	return true
}

// readArtifact reads the files in an artifact's manifest. It leaves out layers without a name,
// which cannot be mounted.
func (m *Manifest) readArtifact(parsed manifest.Manifest) error {
	m.Artifact = true
	for _, l := range parsed.LayerInfos() {
		b := Blob{BlobInfo: l.BlobInfo, File: fileOf(l.BlobInfo)}
		if b.File == "" {
			continue
		}
		if err := checkFile(b); err != nil {
			return fmt.Errorf("artifact: %w", err)
		}
		b.File = filepath.Clean(b.File)
		m.Layers = append(m.Layers, b)
	}
	switch {
	case len(m.Layers) == 0:
		return fault.Invalid.Errorf("it is neither an image nor an artifact with files: no layer has the annotation %s", v1.AnnotationTitle)
	case len(m.Layers) > maxFiles:
		return fault.Invalid.Errorf("artifact with %d files, more than %d", len(m.Layers), maxFiles)
	}
	return m.checkBlobs()
}

// fileOf returns the name of the file that a layer is, "" if it has none.
func fileOf(l types.BlobInfo) string {
	for _, key := range fileAnnotations {
		if name := l.Annotations[key]; name != "" {
			return name
		}
	}
	return ""
}

// checkFile refuses a layer that cannot become a file.
func checkFile(b Blob) error {
	switch {
	case !filepath.IsLocal(b.File) || filepath.Clean(b.File) == ".":
		return fault.Invalid.Errorf("file name %q leads out of it", b.File)
	case !isPath(b.File):
		return fault.Invalid.Errorf("%.300q is not a valid file name", b.File)
	case IsEncrypted(b):
		return fault.Invalid.Errorf("file %q is encrypted, which is for images only", b.File)
	}
	return nil
}

// isPath reports whether name can be a file name on Linux: within NAME_MAX, and well below
// PATH_MAX, because a directory precedes it.
func isPath(name string) bool {
	tooLong := func(part string) bool { return len(part) > 255 }
	return len(name) <= 2048 && !strings.Contains(name, "\x00") && !slices.ContainsFunc(strings.Split(name, "/"), tooLong)
}
