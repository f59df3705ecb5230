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

// DiffIDs reads the digests of the n unpacked layers from an image's config, if the image can
// run here. The error is fault.Invalid for a config that does not match the manifest, and
// fault.NotFound for an image of another platform.
func DiffIDs(config []byte, n int) ([]digest.Digest, error) {
	var img v1.Image
	if err := json.Unmarshal(config, &img); err != nil {
		return nil, fault.Invalid.Errorf("config: %w", err)
	}
	if len(img.RootFS.DiffIDs) != n {
		return nil, fault.Invalid.Errorf("config has %d layers, the manifest %d", len(img.RootFS.DiffIDs), n)
	}
	if err := checkPlatform(img.Platform); err != nil {
		return nil, err
	}
	different := make(map[digest.Digest]bool)
	for _, id := range img.RootFS.DiffIDs {
		if err := id.Validate(); err != nil {
			return nil, fault.Invalid.Errorf("diff ID %q: %w", id, err)
		}
		different[id] = true
	}
	if len(different) > maxLayers {
		return nil, fault.Invalid.Errorf("image of %d layers, more than %d", len(different), maxLayers)
	}
	return img.RootFS.DiffIDs, nil
}
