package blob

import (
	"context"
	"encoding/json"
	"io"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// MaxConfig bounds the size of an image's config, in bytes.
const MaxConfig = 8 << 20

// FetchConfig reads and verifies an image's config. A config that is too long is fault.Invalid;
// one that does not match b's description is fault.Unavailable.
func FetchConfig(ctx context.Context, from Origin, b Blob) (data []byte, err error) {
	if b.Size > MaxConfig {
		return nil, fault.Invalid.Errorf("config has %d bytes, more than %d", b.Size, MaxConfig)
	}
	err = Fetch(ctx, from, b, func() error {
		data, err = fetchConfig(ctx, from, b)
		return err
	})
	return data, err
}

func fetchConfig(ctx context.Context, from Origin, b Blob) ([]byte, error) {
	body, err := from.Open(ctx, b)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	v, err := NewVerifier(body, b)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(v, MaxConfig+1))
	if err == nil && len(data) > MaxConfig {
		err = fault.Invalid.Errorf("config has more than %d bytes", MaxConfig)
	}
	if err != nil {
		return nil, v.Blame(err)
	}
	return data, nil
}

// maxLayers bounds the distinct layers of an image: an overlay takes 500 (OVL_MAX_STACK), one of
// which may be our own layer of directories.
const maxLayers = 499

// DiffIDs reads the digests of the unpacked layers from an image's config, if the image can run
// here; a layer that is a file has none. The error is fault.Invalid for a config that does not match
// the manifest, and fault.NotFound for an image of another platform.
func DiffIDs(config []byte, layers []Blob) ([]digest.Digest, error) {
	var img v1.Image
	if err := json.Unmarshal(config, &img); err != nil {
		return nil, fault.Invalid.Errorf("config: %w", err)
	}
	ids, err := match(img.RootFS.DiffIDs, layers)
	if err != nil {
		return nil, err
	}
	if err := checkPlatform(img.Platform); err != nil {
		return nil, err
	}
	different := make(map[digest.Digest]bool)
	for i, id := range ids {
		if layers[i].File != "" {
			id = layers[i].Identity("")
		} else if err := id.Validate(); err != nil {
			return nil, fault.Invalid.Errorf("diff ID %q: %w", id, err)
		}
		different[id] = true
	}
	if len(different) > maxLayers {
		return nil, fault.Invalid.Errorf("image of %d layers, more than %d", len(different), maxLayers)
	}
	return ids, nil
}

// match assigns the diff IDs of a config to layers. Tools that make images of WebAssembly modules
// differ in whether the modules have diff IDs; nothing verifies these.
func match(diffIDs []digest.Digest, layers []Blob) ([]digest.Digest, error) {
	tars := 0
	for _, b := range layers {
		if b.File == "" {
			tars++
		}
	}
	if n := len(diffIDs); n != tars && n != len(layers) {
		return nil, fault.Invalid.Errorf("config has %d layers, the manifest %d", n, len(layers))
	}
	all, next := len(diffIDs) == len(layers), 0
	ids := make([]digest.Digest, len(layers))
	for i, b := range layers {
		if b.File == "" {
			ids[i] = diffIDs[next]
		}
		if all || b.File == "" {
			next++
		}
	}
	return ids, nil
}
