package image

import (
	"slices"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/image/registry"
)

// Check reads the files that the settings name, as a pull would, and returns their problems, by
// file.
func Check(o Settings) []string {
	return slices.Concat(registry.CheckFiles(o.Settings), blob.CheckKeys(o.KeysDir), registry.CheckHosts(o.Settings))
}
