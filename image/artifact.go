package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
)

// fileAnnotations name the file that a layer of an artifact is: what oras writes,
// and what the model specification of CNCF does.
var fileAnnotations = []string{v1.AnnotationTitle, "org.cncf.model.filepath"}

// maxFiles bounds the files of an artifact: each is a layer of an overlay, which
// takes 500 (OVL_MAX_STACK).
const maxFiles = 400

// isArtifact tells an OCI manifest that is no image by the type of its config. An
// artifactType does not: an image may have one.
func isArtifact(config string) bool {
	switch config {
	case "", v1.MediaTypeImageConfig, manifest.DockerV2Schema2ConfigMediaType:
		return false
	}
	return true
}

// readArtifact takes the files from an artifact's manifest. A layer without a name
// cannot be mounted and is left out.
func (c *choice) readArtifact(m manifest.Manifest) error {
	c.artifact = true
	for _, l := range m.LayerInfos() {
		b := blob{BlobInfo: l.BlobInfo}
		for _, key := range fileAnnotations {
			if b.file = l.Annotations[key]; b.file != "" {
				break
			}
		}
		switch {
		case b.file == "":
			continue
		case !filepath.IsLocal(b.file) || filepath.Clean(b.file) == ".":
			return fault.Invalid.Errorf("artifact: file name %q leads out of it", b.file)
		case !isPath(b.file):
			return fault.Invalid.Errorf("artifact: file name %.300q cannot be one", b.file)
		case isEncrypted(b):
			return fault.Invalid.Errorf("artifact: file %q is encrypted, which is for images only", b.file)
		}
		b.file = filepath.Clean(b.file)
		c.layers = append(c.layers, b)
	}
	switch {
	case len(c.layers) == 0:
		return fault.Invalid.Errorf("it is neither an image nor an artifact with files: no layer has the annotation %s", v1.AnnotationTitle)
	case len(c.layers) > maxFiles:
		return fault.Invalid.Errorf("artifact with %d files, more than %d", len(c.layers), maxFiles)
	}
	return c.checkBlobs()
}

// isPath tells whether Linux has a name for a file such as this: NAME_MAX, and well
// below PATH_MAX, for a directory comes before it.
func isPath(name string) bool {
	tooLong := func(part string) bool { return len(part) > 255 }
	return len(name) <= 2048 && !strings.Contains(name, "\x00") && !slices.ContainsFunc(strings.Split(name, "/"), tooLong)
}

// unpackFile fetches a layer that is one file, and puts it into dir under its
// name.
func unpackFile(ctx context.Context, from origin, b blob, dir string) (_ shape, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := from.open(ctx, b)
	if err != nil {
		return shape{}, err
	}
	defer body.Close()
	checked, err := newVerifier(body, b)
	if err != nil {
		return shape{}, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return shape{}, err
	}
	defer root.Close()
	if err := root.MkdirAll(filepath.Dir(b.file), 0o755); err != nil {
		return shape{}, err
	}
	f, err := root.OpenFile(b.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return shape{}, err
	}
	defer f.Close()
	if _, err := io.CopyBuffer(f, onlyReader{checked}, make([]byte, aheadChunk)); err != nil {
		return shape{}, fmt.Errorf("file %q: %w", b.file, err)
	}
	return shape{}, f.Close()
}
