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

// Save writes the image that ref names as an archive: a tar with an OCI layout that is the output of
// docker save too, its layers uncompressed. The archive names the image by ref if that is a tag, else
// not at all. begin is called once, before the first byte, with the ID that the image has there.
//
// Layers are kept unpacked, so their tar streams are made anew, see layer.Store.Write. Where one is not
// what the layer came as, the config gets its new diff ID, and so the image another ID. The image is
// held until Save returns. An encrypted image is written as it was decrypted.
//
// Each layer is read twice: its length and digest come before it in an archive, and it may be larger
// than what memory or disk have left.
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

// tagNamed returns the tag of e that ref means; "" if ref is an ID or a digest.
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

// A saving is an image on its way into an archive.
type saving struct {
	layers  *layer.Store
	entry   *entry
	streams map[digest.Digest]v1.Descriptor // of layers, by what they are kept as
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

// A counter counts what is written to it.
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

// documents returns all of the archive but the layers, and the ID of the image in it.
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
		// containerd and docker take the first, which is in full; podman takes what is there.
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

// config returns the image's config, as it came if it holds for the streams of the layers.
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
	var fields map[string]json.RawMessage // those that the spec does not know stay
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
		if err := w.Flush(); err != nil { // it fails if the layer was shorter this time
			return fmt.Errorf("layer %s: %w", l.DiffID, err)
		}
	}
	return w.Close()
}
