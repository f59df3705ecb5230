package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
	"golang.org/x/sys/unix"
)

// The annotations of an OCI layout's index that name an image: the first is containerd's and
// docker's, and always a full name.
var nameAnnotations = []string{"io.containerd.image.name", v1.AnnotationRefName}

// Load imports the images of an archive, and returns them. The archive is an OCI layout or the
// output of docker save, as a tar, plain or compressed. Of an image for several platforms, Load
// takes the one for ours. An archive is not a registry: policy.json(5) does not apply to Load
// itself. It has no signatures: if a policy requires some, Allowed refuses the image.
//
// With an error Load returns the images loaded before it.
func (s *Store) Load(ctx context.Context, r io.Reader) (_ []Image, err error) {
	defer func() {
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			err = fault.Unavailable.Errorf("%w", err)
		}
		if err != nil {
			err = fmt.Errorf("load archive: %w", err)
		}
	}()
	f, err := spool(ctx, r, s.staging())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a, err := readArchive(ctx, f)
	if err != nil {
		return nil, err
	}
	switch {
	case a.contains(v1.ImageLayoutFile) && a.contains(v1.ImageIndexFile):
		return s.loadOCI(ctx, a)
	case a.contains("manifest.json"):
		return s.loadDocker(ctx, a)
	}
	return nil, fault.Invalid.Errorf("it has neither an %s nor a manifest.json", v1.ImageLayoutFile)
}

// A dockerImage is an image in the manifest.json of docker save: paths in the archive, and names.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// loadDocker loads the output of docker save.
func (s *Store) loadDocker(ctx context.Context, a *archive) ([]Image, error) {
	var list []dockerImage
	if err := a.json("manifest.json", &list); err != nil {
		return nil, err
	}
	var images []Image
	for _, item := range list {
		config, err := a.small(item.Config)
		if err != nil {
			return images, err
		}
		var blobs []blob.Blob
		for _, layer := range item.Layers {
			content, err := a.content(layer)
			if err != nil {
				return images, err
			}
			blobs = append(blobs, blob.Blob{BlobInfo: types.BlobInfo{Size: content.Size()}, Path: layer})
		}
		var tags []string
		for _, tag := range item.RepoTags {
			name, err := reference.ParseDockerRef(tag)
			if err != nil {
				return images, fault.Invalid.Errorf("name %q: %w", tag, err)
			}
			tags = append(tags, name.String())
		}
		ids, err := blob.DiffIDs(config, blobs)
		if err != nil {
			return images, err
		}
		img, err := s.unpackImage(ctx, nil, a, blobs, ids, record{Config: config, Tags: tags})
		if err != nil {
			return images, err
		}
		images = append(images, img)
	}
	return images, nil
}

// loadOCI loads the images of an OCI layout (image-spec, image-layout.md).
func (s *Store) loadOCI(ctx context.Context, a *archive) ([]Image, error) {
	var index v1.Index
	if err := a.json(v1.ImageIndexFile, &index); err != nil {
		return nil, err
	}
	names, groups, err := byName(index.Manifests)
	if err != nil {
		return nil, err
	}
	var images []Image
	for i, group := range groups {
		desc := group[0]
		if len(group) > 1 { // one name, several platforms
			if desc, err = ours(v1.Index{Versioned: index.Versioned, MediaType: v1.MediaTypeImageIndex, Manifests: group}); err != nil {
				return images, err
			}
		}
		img, err := s.loadManifest(ctx, a, names[i], desc)
		if err != nil {
			return images, err
		}
		images = append(images, img)
	}
	return images, nil
}

// byName groups the manifests of a layout by the name in their annotations; each manifest
// without a name is its own group. Manifests for no platform (docker's attestations) are left
// out.
func byName(all []v1.Descriptor) (names []reference.Named, groups [][]v1.Descriptor, err error) {
	for _, desc := range all {
		if desc.Platform != nil && desc.Platform.OS == "unknown" {
			continue
		}
		var name reference.Named
		for _, key := range nameAnnotations {
			if text := desc.Annotations[key]; text != "" {
				if name, err = reference.ParseDockerRef(text); err != nil {
					return nil, nil, fault.Invalid.Errorf("name %q: %w", text, err)
				}
				break
			}
		}
		same := slices.IndexFunc(names, func(n reference.Named) bool {
			return n != nil && name != nil && n.String() == name.String()
		})
		if same < 0 {
			names = append(names, name)
			groups = append(groups, []v1.Descriptor{desc})
			continue
		}
		groups[same] = append(groups[same], desc)
	}
	return names, groups, nil
}

// ours returns the descriptor in index for this platform.
func ours(index v1.Index) (v1.Descriptor, error) {
	data, err := json.Marshal(index)
	if err != nil {
		return v1.Descriptor{}, err
	}
	d, err := blob.ChoosePlatform(data, v1.MediaTypeImageIndex, &types.SystemContext{})
	if err != nil {
		return v1.Descriptor{}, err
	}
	i := slices.IndexFunc(index.Manifests, func(desc v1.Descriptor) bool { return desc.Digest == *d })
	return index.Manifests[i], nil
}

// loadManifest loads the image that desc refers to, through indexes if need be.
func (s *Store) loadManifest(ctx context.Context, a *archive, name reference.Named, desc v1.Descriptor) (Image, error) {
	top := desc.Digest
	for range blob.MaxNesting {
		data, err := a.blob(desc)
		if err != nil {
			return Image{}, err
		}
		kind := desc.MediaType
		if kind == "" {
			kind = manifest.GuessMIMEType(data)
		}
		if manifest.MIMETypeIsMultiImage(kind) {
			var index v1.Index
			if err := json.Unmarshal(data, &index); err != nil {
				return Image{}, fault.Invalid.Errorf("index %s: %w", desc.Digest, err)
			}
			if desc, err = ours(index); err != nil {
				return Image{}, err
			}
			continue
		}
		var c registry.Choice
		if c.Manifest, err = blob.ReadManifest(data, kind); err != nil {
			return Image{}, err
		}
		for i := range c.Layers {
			c.Layers[i].Path = blobPath(c.Layers[i].Digest)
		}
		c.Config.Path = blobPath(c.Config.Digest)
		var tags, digests []string
		if name != nil {
			if _, ok := registry.DigestOf(name); !ok {
				tags = []string{name.String()}
			}
			digests = []string{name.Name() + "@" + top.String()}
		}
		return s.install(ctx, nil, a, c, tags, digests)
	}
	return Image{}, fault.Invalid.Errorf("more than %d indexes lie within each other", blob.MaxNesting)
}

// blob reads a manifest or an index of a layout, and verifies it.
func (a *archive) blob(desc v1.Descriptor) ([]byte, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fault.Invalid.Errorf("digest %q: %w", desc.Digest, err)
	}
	data, err := a.small(blobPath(desc.Digest))
	if err == nil && desc.Digest.Algorithm().FromBytes(data) != desc.Digest {
		err = fault.Invalid.Errorf("blob %s has another digest", desc.Digest)
	}
	return data, err
}

// blobPath is the path of a blob in a layout.
func blobPath(d digest.Digest) string {
	if d.Validate() != nil {
		return ""
	}
	return v1.ImageBlobsDir + "/" + d.Algorithm().String() + "/" + d.Encoded()
}
