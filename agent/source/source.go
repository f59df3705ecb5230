// Package source finds manifests. A source reports everything it has at once,
// whenever that has changed; it never reports half of what it could not read, so
// that a directory that is unmounted for a moment ends no pods.
package source

import v1 "k8s.io/api/core/v1"

// A File is one manifest file as it is now.
type File struct {
	Path string
	Pods []*v1.Pod
	Err  error // if not nil there are no Pods: the file could not be read or is wrong
}

// An Update is all that a source has.
type Update struct {
	Source string // "file"
	Files  []File // by Path
}
