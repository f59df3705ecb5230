package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// byDigest matches the image that critest pulls by digest.
var byDigest = regexp.MustCompile(`gcr\.io/k8s-staging-cri-tools/test-image-digest@sha256:[0-9a-f]{64}`)

// fetchImages fetches critest's images into dir, in the layout that registry.go serves. They come
// from the mirrors in CONTAINERS_REGISTRIES_CONF, if there are any.
func fetchImages(ctx context.Context, list, critest, dir string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(critest)
	if err != nil {
		return err
	}
	refs := []string{string(byDigest.Find(program))}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
			refs = append(refs, line)
		}
	}
	conf, err := mirrors(os.Getenv("CONTAINERS_REGISTRIES_CONF"))
	if err != nil {
		return err
	}
	for _, ref := range refs {
		if ref == "" {
			continue
		}
		host, rest, _ := strings.Cut(ref, "/")
		var errs []error
		for _, from := range append(conf[host], host) {
			err := fetchImage(ctx, from+"/"+rest, dir)
			if errs = append(errs, err); err == nil {
				errs = nil
				break
			}
		}
		if len(errs) > 0 {
			return fmt.Errorf("critest's image %s: %w", ref, errors.Join(errs...))
		}
	}
	return nil
}

// mirrors reads the mirrors of each registry: containers-registries.conf(5).
func mirrors(path string) (map[string][]string, error) {
	found := map[string][]string{}
	if path == "" {
		return found, nil
	}
	var conf struct {
		Registry []struct {
			Location string
			Mirror   []struct{ Location string }
		}
	}
	if _, err := toml.DecodeFile(path, &conf); err != nil {
		return nil, err
	}
	for _, r := range conf.Registry {
		for _, m := range r.Mirror {
			found[r.Location] = append(found[r.Location], m.Location)
		}
	}
	return found, nil
}

// fetchImage fetches an image; of several platforms only this machine's, but the index unchanged,
// because its digest must stay.
func fetchImage(ctx context.Context, text, dir string) error {
	ref, err := name.ParseReference(text, name.Insecure)
	if err != nil {
		return err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"})}
	d, err := remote.Get(ref, options...)
	if err != nil {
		return err
	}
	image, err := d.Image()
	if err != nil {
		return err
	}
	repository := filepath.Join(dir, "manifests", ref.Context().RepositoryStr())
	inner, err := image.RawManifest()
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	for tag, manifest := range map[string][]byte{ref.Identifier(): d.Manifest, d.Digest.String(): d.Manifest, digest.String(): inner} {
		if err := write(filepath.Join(repository, tag), manifest); err != nil {
			return err
		}
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return err
	}
	configName, err := image.ConfigName()
	if err != nil {
		return err
	}
	if err := write(filepath.Join(dir, "blobs", configName.String()), config); err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return err
		}
		r, err := l.Compressed()
		if err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return err
		}
		if err := write(filepath.Join(dir, "blobs", digest.String()), data); err != nil {
			return err
		}
	}
	return nil
}

func write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// mediaType returns a manifest's media type from its content; Docker's manifests always have it.
func mediaType(manifest []byte) string {
	var m struct {
		MediaType string
		Manifests []any
	}
	if json.Unmarshal(manifest, &m); m.MediaType != "" {
		return m.MediaType
	}
	if m.Manifests != nil {
		return "application/vnd.oci.image.index.v1+json"
	}
	return "application/vnd.oci.image.manifest.v1+json"
}
