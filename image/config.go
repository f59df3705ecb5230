package image

import (
	"context"
	"encoding/json"
	"io"
	"runtime"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxConfig bounds what is read of an image's config.
const maxConfig = 8 << 20

// fetchConfig reads and verifies an image's config.
func fetchConfig(ctx context.Context, from origin, b blob) ([]byte, error) {
	if b.Size > maxConfig {
		return nil, fault.Invalid.Errorf("config has %d bytes, more than %d", b.Size, maxConfig)
	}
	body, err := from.open(ctx, b)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	v, err := newVerifier(body, b)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(v, maxConfig+1))
	if err == nil && len(data) > maxConfig {
		err = fault.Invalid.Errorf("config has more than %d bytes", maxConfig)
	}
	return data, err
}

// maxLayers bounds the different layers of an image: an overlay takes 500
// (OVL_MAX_STACK), of which one may have directories of our own, see inherit.
const maxLayers = 499

// diffIDs reads the digests of the n unpacked layers from an image's config, if the image
// can run here.
func diffIDs(config []byte, n int) ([]digest.Digest, error) {
	var img v1.Image
	if err := json.Unmarshal(config, &img); err != nil {
		return nil, fault.Invalid.Errorf("config: %w", err)
	}
	if len(img.RootFS.DiffIDs) != n {
		return nil, fault.Invalid.Errorf("config speaks of %d layers, the manifest of %d", len(img.RootFS.DiffIDs), n)
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

// runsAlso are the architectures of other programs that a machine can run.
var runsAlso = map[string]string{"amd64": "386", "arm64": "arm"}

// checkPlatform refuses the image of another machine. Only a list of manifests says of
// what it is; a single one does not, so its config is asked. One that says nothing is
// believed to fit.
func checkPlatform(p v1.Platform) error {
	os := p.OS == "" || p.OS == "linux"
	arch := p.Architecture == "" || p.Architecture == runtime.GOARCH || p.Architecture == runsAlso[runtime.GOARCH]
	if os && arch {
		return nil
	}
	return fault.NotFound.Errorf("it is for the platform %.40s/%.40s, and this is linux/%s", p.OS, p.Architecture, runtime.GOARCH)
}
