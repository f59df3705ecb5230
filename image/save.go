package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Save writes the image that ref names as a tar that is both an OCI layout and the output of
// docker save, with uncompressed layers. If ref is a tag, the archive names the image by it,
// else not at all. Save calls begin once, before the first byte, with the image's ID in the
// archive.
//
// Layers are stored unpacked, so Save rebuilds their tar streams, see layer.Store.Write. If a
// stream differs from the original layer, the config gets its new diff ID, which changes the
// image's ID. The image is retained until Save returns. An encrypted image is written decrypted.
//
// Each layer is read twice: its length and digest precede it in an archive, and it may be larger
// than the free memory or disk.
func (s *Store) Save(ctx context.Context, ref string, begin func(id string) (io.Writer, error)) (err error) {
	e, err := s.find(ref)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("save image %s: %w", ref, err)
		}
	}()
	if e.Artifact {
		return fault.Invalid.Errorf("it is an artifact, which has files and no layers")
	}
	layers, err := s.layers.RetainAll(e.record.Layers)
	if err != nil {
		return err
	}
	defer func() {
		if rerr := s.layers.ReleaseAll(layers); rerr != nil {
			s.log.Warn("unneeded layer was not removed", "err", rerr)
		}
	}()
	sv := &saving{layers: s.layers, entry: e, streams: make(map[digest.Digest]v1.Descriptor)}
	if err := sv.measure(ctx, layers); err != nil {
		return err
	}
	files, id, err := sv.documents(s.tagNamed(e, ref))
	if err != nil {
		return err
	}
	w, err := begin(id)
	if err != nil {
		return err
	}
	return sv.write(ctx, w, files, layers)
}

// tagNamed returns the tag of e that ref refers to; "" if ref is an ID or a digest.
func (s *Store) tagNamed(e *entry, ref string) string {
	names, err := s.registries.Names(ref)
	if err != nil {
		return "" // it is an ID
	}
	for _, name := range names {
		if slices.Contains(e.Tags, name.String()) {
			return name.String()
		}
	}
	return ""
}

// A saving is an image being written to an archive.
type saving struct {
	layers  *layer.Store
	entry   *entry
	streams map[digest.Digest]v1.Descriptor // of layers, by their diff IDs
	order   []v1.Descriptor                 // from the lowest
}

// measure finds the digest and the length of each layer's stream.
func (sv *saving) measure(ctx context.Context, layers []*layer.Layer) error {
	for _, l := range layers {
		d, known := sv.streams[l.DiffID]
		if !known {
			sum := digest.SHA256.Digester()
			var size counter
			if err := sv.layers.Write(ctx, l, io.MultiWriter(sum.Hash(), &size)); err != nil {
				return err
			}
			d = v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: sum.Digest(), Size: int64(size)}
			sv.streams[l.DiffID] = d
		}
		sv.order = append(sv.order, d)
	}
	return nil
}

// A counter counts the bytes written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// A document is a small file of the archive.
type document struct {
	name string
	data []byte
}

// documents returns everything in the archive except the layers, and the ID of the image in it.
func (sv *saving) documents(tag string) ([]document, string, error) {
	config, err := sv.config()
	if err != nil {
		return nil, "", err
	}
	m := v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config:      v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))},
		Layers:      sv.order,
		Annotations: sv.entry.Annotations,
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		return nil, "", err
	}
	top := v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}
	docker := dockerImage{Config: blobPath(m.Config.Digest)}
	for _, d := range sv.order {
		docker.Layers = append(docker.Layers, blobPath(d.Digest))
	}
	if tag != "" {
		docker.RepoTags = []string{tag}
		// containerd and docker use the first, which is a full name; podman uses either.
		top.Annotations = map[string]string{nameAnnotations[0]: tag, nameAnnotations[1]: tag[strings.LastIndexByte(tag, ':')+1:]}
	}
	files := []document{{"blobs/sha256/" + m.Config.Digest.Encoded(), config}, {"blobs/sha256/" + top.Digest.Encoded(), manifest}}
	for _, f := range []struct {
		name string
		v    any
	}{
		{v1.ImageLayoutFile, v1.ImageLayout{Version: v1.ImageLayoutVersion}},
		{v1.ImageIndexFile, v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{top}}},
		{"manifest.json", []dockerImage{docker}},
	} {
		data, err := json.Marshal(f.v)
		if err != nil {
			return nil, "", err
		}
		files = append(files, document{f.name, data})
	}
	return files, m.Config.Digest.String(), nil
}

// config returns the image's config, unchanged if it matches the streams of the layers.
func (sv *saving) config() ([]byte, error) {
	same := len(sv.entry.record.Layers) == len(sv.order)
	rootFS := v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{}}
	for i, d := range sv.order {
		same = same && d.Digest == sv.entry.record.Layers[i]
		rootFS.DiffIDs = append(rootFS.DiffIDs, d.Digest)
	}
	if same {
		return sv.entry.record.Config, nil
	}
	var fields map[string]json.RawMessage // those that the spec does not define stay
	err := json.Unmarshal(sv.entry.record.Config, &fields)
	if err == nil {
		fields["rootfs"], err = json.Marshal(rootFS)
	}
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return json.Marshal(fields)
}

// write writes the archive.
func (sv *saving) write(ctx context.Context, to io.Writer, files []document, layers []*layer.Layer) error {
	w := tar.NewWriter(to)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: 0o644, Size: int64(len(f.data))}); err != nil {
			return err
		}
		if _, err := w.Write(f.data); err != nil {
			return err
		}
	}
	written := make(map[digest.Digest]bool)
	for i, l := range layers {
		d := sv.order[i]
		if written[d.Digest] {
			continue
		}
		written[d.Digest] = true
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: blobPath(d.Digest), Mode: 0o644, Size: d.Size}); err != nil {
			return err
		}
		if err := sv.layers.Write(ctx, l, w); err != nil {
			return err
		}
		if err := w.Flush(); err != nil { // fails if the layer was shorter this time
			return fmt.Errorf("layer %s: %w", l.DiffID, err)
		}
	}
	return w.Close()
}
