// Package image pulls images, keeps them, and has root file systems mounted from them. It knows
// nothing of containers' states, CRI or sandboxes.
//
// The parts of an image have their own packages: registry finds it and fetches its blobs, blob
// reads them, layer unpacks them and keeps the result, rootfs mounts it. Each package documents
// its files on disk. The Store here has the images, and pulls them.
//
// An image is a record (Records) with its config, names and diff IDs. It comes
// into being in this order: the layers are committed, then the record is
// saved. A power cut leaves the whole image or a layer that nobody refers to,
// which Open removes. The record is what makes an image exist: Open drops one
// whose layers are not there, and a pull heals it.
//
// A layer lives as long as somebody retains it: an image, a root file system (its
// lease is on disk, so that it outlives the daemon), or a pull under way.
package image

import (
	"log/slog"
	"time"

	"github.com/crisp-cri/crisp/image/registry"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Records keeps small documents durably, by kind and id. Calls for one record
// do not overlap.
type Records interface {
	Save(kind, id string, v any) error
	// Load reads into v what Save wrote. If there is no such record the error is of kind
	// fault.NotFound; if a newer crispd wrote it, fault.WrongState.
	Load(kind, id string, v any) error
	// IDs lists the records of a kind. Corrupt ones are left out.
	IDs(kind string) ([]string, error)
	// Remove forgets a record; it is no error if there is none.
	Remove(kind, id string) error
}

// Options say where a Store keeps things and how it pulls. Root, State and
// Records are required.
type Options struct {
	Root    string // layers, writable layers and staging; on the disk that holds images
	State   string // mounts; a directory that a reboot empties
	Records Records
	Layers  string       // the form of new layers: Auto, EROFS or, with anything else, directories
	Unclean bool         // the machine went down without a clean stop: verify the layers committed last
	Log     *slog.Logger // nil means slog.Default()
	Settings
}

// Values of Options.Layers: EROFS file systems where the kernel can mount those from files, and
// directories where it cannot. EROFS has the log warn of that.
const (
	Auto  = "auto"
	EROFS = "erofs"
)

// Settings are the options that Reconfigure can change. The files and directories that they
// name are read again for each pull.
type Settings struct {
	registry.Settings

	KeysDir     string   // private keys that open encrypted layers; "" means none
	Pinned      []string // names of images that are reported as pinned; * stands for any characters
	MaxParallel int      // layers that one pull downloads and unpacks at once; 0 means 4
}

// An Image is one image: one config, whatever names it goes by. It is a plain
// value; a copy is a snapshot, and what it points at never changes.
type Image struct {
	ID          string            // "sha256:" and the digest of the config, in hex
	Tags        []string          // full names with their tag, sorted: "docker.io/library/busybox:latest"
	Digests     []string          // full names with the digest that was pulled, sorted: "docker.io/library/busybox@sha256:…"
	Size        uint64            // bytes in the unpacked layers and the config; never 0
	Annotations map[string]string // annotations of its first manifest about the container that it is a checkpoint of; nil = none
	Config      v1.Image          // as it came; empty if it is an artifact
	Artifact    bool              // not an image of a system but files, which can be a volume; its ID is the digest of its manifest
	Pinned      bool              // not to be collected
	CreatedAt   time.Time         // when it was first pulled or loaded here
}

// FsInfo is how much space the images and the writable layers occupy.
type FsInfo struct {
	Mountpoint string // a directory on the file system that holds them
	UsedBytes  uint64 // allocated on disk
	Inodes     uint64
}
