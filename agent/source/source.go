// Package source reads manifests from a directory or a URL. After a change a source sends its
// complete content. While it cannot read the directory or the URL it sends nothing, so that a
// directory that is briefly unmounted ends no pods.
//
// A bad file has the objects of its last good version, of which there is a copy on disk: neither a
// typing error, nor a server that is down while the agent restarts, ends a pod. A file that is
// being written is read once it is complete. A file that became empty is bad.
package source

import "github.com/crisp-cri/crisp/agent/manifest"

// A File is the current state of a manifest.
type File struct {
	Path     string // or URL
	Objects  []manifest.Object
	Warnings manifest.Errors
	Err      error // why it could not be read or is bad; Objects are those of its last good version
}

// An Update is the complete content of a source.
type Update struct {
	Source string // "file", "http" or "api"
	Files  []File // by Path
}

// Decode turns a file's content into objects, as manifest.Read does. accepted is
// manifest.Options.Accepted.
type Decode func(path string, data []byte, accepted bool) ([]manifest.Object, manifest.Errors, error)
