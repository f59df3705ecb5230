package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/server/spec"
)

// maxAccounts limits the size of an image's /etc/passwd and /etc/group, in bytes.
// They are read line by line.
const maxAccounts = 10 << 20

// lookUpUser resolves the user of a container by the account files of its root file system.
func lookUpUser(sc *cri.LinuxContainerSecurityContext, imageUser, root string) (spec.User, error) {
	passwd, err := openInRoot(root, "/etc/passwd")
	if err != nil {
		return spec.User{}, err
	}
	defer passwd.Close()
	group, err := openInRoot(root, "/etc/group")
	if err != nil {
		return spec.User{}, err
	}
	defer group.Close()
	return spec.ResolveUser(sc, imageUser, passwd, group)
}

// openInRoot opens a file of an image. Symlinks cannot lead out of root, and anything but a
// regular file is an error (a pipe would block). A missing file reads as empty.
func openInRoot(root, name string) (io.ReadCloser, error) {
	handle, err := pathrs.OpenInRoot(root, name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return io.NopCloser(bytes.NewReader(nil)), nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s of the image: %w", name, err)
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at %s of the image: %w", name, err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxAccounts {
		return nil, fault.Invalid.Errorf("%s of the image is not a regular file of reasonable size: %s, %d bytes", name, info.Mode().Type(), info.Size())
	}
	f, err := pathrs.Reopen(handle, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open %s of the image: %w", name, err)
	}
	return f, nil
}
