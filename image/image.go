// Package image pulls and stores images, and provides root file systems made from them. It knows
// nothing of containers' states, CRI or sandboxes.
//
// The parts of an image have their own packages: registry finds it and fetches its blobs, blob
// reads them, layer unpacks and stores them, rootfs mounts the result. Each package documents
// its files on disk. The Store here keeps the images and pulls them.
//
// An image is a record (Records) with its config, names and diff IDs. A pull first commits the
// layers and then saves the record. So a power cut leaves the whole image, or a layer that
// nothing refers to, which Open removes. An image exists if its record does: Open drops an image
// whose layers are missing, and a pull repairs it.
//
// A layer lives as long as it is retained by an image, a root file system (its lease is on
// disk, so that it outlives the daemon), or a pull under way.
package image

import (
	"log/slog"
	"time"

	"github.com/crisp-cri/crisp/image/registry"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Records stores small documents durably, by kind and id. Calls for the same record never
// overlap.
type Records interface {
	Save(kind, id string, v any) error
	// Load reads into v what Save wrote. If there is no such record the error is of kind
	// fault.NotFound; if a newer crispd wrote it, fault.WrongState.
	Load(kind, id string, v any) error
	// IDs lists the records of a kind. Corrupt ones are left out.
	IDs(kind string) ([]string, error)
	// Remove forgets a record; a missing one is no error.
	Remove(kind, id string) error
}

// Options say where a Store keeps its files and how it pulls. Root, State and Records are
// required.
type Options struct {
	Root    string // layers, writable layers and staging; on the disk that holds images
	State   string // mounts; a directory that a reboot empties
	Records Records
	Squash  bool         // root owns the files of images whose owners are not in crispd's user namespace
	Layers  string       // the form of new layers: Auto, EROFS, or directories for any other value
	Unclean bool         // the machine went down without a clean stop: verify the layers committed last
	Log     *slog.Logger // nil means slog.Default()
	Settings
}

// Values of Options.Layers: EROFS file systems if the kernel can mount them from files, else
// directories. With EROFS the log then has a warning.
const (
	Auto  = "auto"
	EROFS = "erofs"
)

// Settings are the options that Reconfigure can change. Each pull reads the files and
// directories they name again.
type Settings struct {
	registry.Settings

	KeysDir     string   // private keys that open encrypted layers; "" means none
	Pinned      []string // names of images that are reported as pinned; * matches any characters
	MaxParallel int      // layers that one pull downloads and unpacks at once; 0 means 4
}

// An Image is one image: one config, under any number of names. It is a plain value; a copy is a
// snapshot, and what it points to never changes.
type Image struct {
	ID          string            // "sha256:" and the digest of the config, in hex
	Tags        []string          // full names with their tag, sorted: "docker.io/library/busybox:latest"
	Digests     []string          // full names with the digest that was pulled, sorted: "docker.io/library/busybox@sha256:…"; Get also knows that of the one manifest in a list
	Size        uint64            // bytes in the unpacked layers and the config; never 0
	Annotations map[string]string // annotations of its first manifest about the container that it is a checkpoint of; nil = none
	Config      v1.Image          // as received; empty for an artifact
	Artifact    bool              // files instead of a root file system, usable as a volume; its ID is the digest of its manifest
	Pinned      bool              // must not be garbage-collected
	CreatedAt   time.Time         // when it was first pulled or loaded here
}

// FsInfo is how much space the images and the writable layers occupy.
type FsInfo struct {
	Mountpoint string // a directory on the file system that holds them
	UsedBytes  uint64 // allocated on disk
	Inodes     uint64
}
