package spec

import (
	"io"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A User is who a container runs as, in numbers.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary, without duplicates, ascending
	Home     string   // from passwd; "/" if the user has no entry
}

// ResolveUser answers who a container runs as. The CRI's user wins over the
// image's ("user", "uid", "user:group", …, as in the image's config). passwd and
// group are the files of the container's root file system; nil = there is none.
//
// CRI: "run_as_group should only be specified when run_as_user or
// run_as_username is specified; otherwise, the runtime MUST error."
func ResolveUser(sc *cri.LinuxContainerSecurityContext, imageUser string, passwd, group io.Reader) (User, error) {
	return resolveUser(sc, imageUser, passwd, group)
}
