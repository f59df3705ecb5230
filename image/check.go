package image

import (
	"slices"

	"github.com/crisp-cri/crisp/image/blob"
)

// Check looks at the files that the settings name, as a pull would, and says what
// is wrong with them, by file.
func Check(o Settings) []string {
	return slices.Concat(checkFiles(o.RegistrySettings), blob.CheckKeys(o.KeysDir), checkHosts(o.RegistrySettings))
}
