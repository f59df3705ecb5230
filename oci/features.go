package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// featuresTimeout bounds how long an OCI runtime may take to report its features.
const featuresTimeout = 10 * time.Second

// Features are optional features of an OCI runtime.
type Features struct {
	RecursiveRO bool // supports the mount option "rro"
	NoSymFollow bool // supports the mount option "nosymfollow"
	IDMap       bool // supports mounts mapped to a user namespace
	NetDevices  bool // moves network devices into a container's network
}

// AskFeatures asks the OCI runtime at path for its features, with the command "features" that
// the runtime specification defines since 1.1 ("features.md").
func AskFeatures(ctx context.Context, path string) (Features, error) {
	ctx, cancel := context.WithTimeout(ctx, featuresTimeout)
	defer cancel()
	data, err := exec.CommandContext(ctx, path, "features").Output()
	var f features.Features
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return Features{}, fmt.Errorf("features of %s: %w", path, err)
	}
	reported := Features{RecursiveRO: slices.Contains(f.MountOptions, "rro"), NoSymFollow: slices.Contains(f.MountOptions, "nosymfollow")}
	is := func(enabled *bool) bool { return enabled != nil && *enabled }
	if l := f.Linux; l != nil {
		reported.IDMap = l.MountExtensions != nil && l.MountExtensions.IDMap != nil && is(l.MountExtensions.IDMap.Enabled)
		reported.NetDevices = l.NetDevices != nil && is(l.NetDevices.Enabled)
	}
	return reported, nil
}
