// Package source finds manifests: in a directory, behind a URL. A source reports
// everything it has at once, whenever that has changed; it never reports half of
// what it could not read, so that a directory that is unmounted for a moment
// ends no pods.
//
// A file that is wrong counts as its last good version, which is also kept on
// disk: neither a slip of the pen nor a server that is away while the agent
// starts anew ends a pod. A file that is being written is not looked at before it is
// complete, and one that has become empty counts as wrong.
package source

import "github.com/crisp-cri/crisp/agent/manifest"

// A File is one manifest as it is now.
type File struct {
	Path     string // or URL
	Objects  []manifest.Object
	Warnings manifest.Errors
	Err      error // the file could not be read or is wrong; Objects are those of its last good version
}

// An Update is all that a source has.
type Update struct {
	Source string // "file", "http" or "api"
	Files  []File // by Path
}

// Decode makes objects of a file's content, as manifest.Read does.
type Decode func(path string, data []byte) ([]manifest.Object, manifest.Errors, error)
