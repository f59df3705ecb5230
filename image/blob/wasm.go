package blob

import (
	"fmt"
	"path/filepath"
	"slices"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/types"
)

// moduleTypes are the media types of layers that are one WebAssembly module or component instead
// of a tar: the CNCF's, that of the solo.io specification, and that of runwasi's tools.
var moduleTypes = []string{
	"application/wasm", "application/vnd.wasm.content.layer.v1+wasm", "application/vnd.bytecodealliance.wasm.component.layer.v0+wasm",
}

// moduleOSes are the names that images of WebAssembly modules have for their operating system, and
// moduleArch the one that they have for their architecture.
var moduleOSes = []string{"wasi", "wasip1", "wasip2"}

const moduleArch = "wasm"

// nameModules gives the layers of an image that are WebAssembly modules the names of files: the
// annotation that an artifact's layer has, else module.wasm, module1.wasm …
func (m *Manifest) nameModules(infos []types.BlobInfo) error {
	unnamed := 0
	for i, l := range infos {
		if !slices.Contains(moduleTypes, l.MediaType) {
			continue
		}
		b := &m.Layers[i]
		if b.Module, b.File = true, fileOf(l); b.File == "" {
			b.File = "module.wasm"
			if unnamed > 0 {
				b.File = fmt.Sprintf("module%d.wasm", unnamed)
			}
			unnamed++
		}
		if err := checkFile(*b); err != nil {
			return fmt.Errorf("module of the image: %w", err)
		}
		b.File = filepath.Clean(b.File)
	}
	return nil
}

// isModule reports whether a platform is WebAssembly's, which a handler may run on any machine.
func isModule(p v1.Platform) bool {
	return p.Architecture == moduleArch && slices.Contains(moduleOSes, p.OS)
}
