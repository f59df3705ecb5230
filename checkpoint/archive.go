package checkpoint

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A checkpoint of a container is a directory, or a tar archive of one, in the format that
// Podman, CRI-O and containerd write and checkpointctl reads:
//
//	config.dump            describes the container, see Container
//	spec.dump              its OCI configuration
//	checkpoint/            CRIU's images
//	dump.log, stats-dump   CRIU's log and statistics
//	rootfs-diff.tar        files that it wrote in its root file system
//	deleted.files          paths that it removed there: a JSON list
//	devshm-checkpoint.tar  files in /dev/shm
//	container.log          its log at that time
//	crisp.dump             read by crisp only, see the server
const (
	ConfigDump   = "config.dump"
	SpecDump     = "spec.dump"
	Images       = "checkpoint"
	DumpLog      = "dump.log"
	RootFSDiff   = "rootfs-diff.tar"
	DeletedFiles = "deleted.files"
	DevShm       = "devshm-checkpoint.tar"
	ContainerLog = "container.log"
	CrispDump    = "crisp.dump"
)

// known are the files of a checkpoint, besides those below Images, that are read from an
// archive. Other runtimes write more, for their own use.
var known = []string{ConfigDump, SpecDump, RootFSDiff, DeletedFiles, DevShm, CrispDump}

// A Container is the content of config.dump: the fields common to all runtimes that write it, by
// checkpointctl's names.
type Container struct {
	ID              string    `json:"id"`
	Name            string    `json:"name"`
	RootfsImage     string    `json:"rootfsImage,omitempty"`     // as the user wrote it
	RootfsImageRef  string    `json:"rootfsImageRef,omitempty"`  // its ID; others write a reference by digest
	RootfsImageName string    `json:"rootfsImageName,omitempty"` // for pulling it
	Runtime         string    `json:"runtime,omitempty"`
	CreatedTime     time.Time `json:"createdTime"`
	CheckpointedAt  time.Time `json:"checkpointedTime"`
	RestoredAt      time.Time `json:"restoredTime"`
	Restored        bool      `json:"restored"`
}

// Write writes v as JSON to the file name in a checkpoint's directory.
func Write(dir, name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return os.WriteFile(filepath.Join(dir, name), data, 0o600)
}

// maxDocument bounds the size of a JSON file, in bytes.
const maxDocument = 32 << 20

// Read reads a JSON file of a checkpoint's directory. The error is fault.NotFound
// if it is missing, and fault.Invalid if it cannot be decoded.
func Read(dir, name string, v any) error {
	f, err := OpenFile(dir, name)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err != nil {
		return err
	}
	if len(data) > maxDocument {
		return fault.Invalid.Errorf("%s of the checkpoint has more than %d bytes", name, maxDocument)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fault.Invalid.Errorf("%s of the checkpoint: %w", name, err)
	}
	return nil
}

// OpenFile opens a regular file of a checkpoint's directory. The directory may
// come from an untrusted image: no symlink in it is followed.
func OpenFile(dir, name string) (*os.File, error) {
	f, err := openIn(dir, name, unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fault.Invalid.Errorf("%s of the checkpoint is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func openIn(dir, name string, flags uint64) (*os.File, error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.Invalid.Errorf("checkpoint %s: %w", dir, err)
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err == unix.ENOENT {
		return nil, fault.NotFound.Errorf("the checkpoint has no %s", name)
	}
	if err != nil {
		return nil, fault.Invalid.Errorf("%s of the checkpoint: %w", name, err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir, name)), nil
}
