// Package source reads manifests from a directory or a URL. Whenever something has
// changed, a source reports everything it has. It reports nothing when it cannot read the
// directory or the URL, so that a directory that is unmounted for a moment ends no pods.
//
// A file that is wrong counts with its last good version, of which there is a copy on disk:
// neither a typing error nor a server that is down while the agent restarts ends a pod. A
// file that is being written is read when it is complete, and one that has become empty
// counts as wrong.
package source

import "github.com/crisp-cri/crisp/agent/manifest"

// A File is the present state of a manifest.
type File struct {
	Path     string // or URL
	Objects  []manifest.Object
	Warnings manifest.Errors
	Err      error // why it could not be read or is wrong; Objects are those of its last good version
}

// An Update is all that a source has.
type Update struct {
	Source string // "file", "http" or "api"
	Files  []File // by Path
}

// Decode turns a file's content into objects, as manifest.Read does. accepted is
// manifest.Options.Accepted.
type Decode func(path string, data []byte, accepted bool) ([]manifest.Object, manifest.Errors, error)
