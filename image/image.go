// Package image keeps images and mounts root file systems from them. It knows
// nothing of containers' states, CRI or sandboxes.
package image

import (
	"log/slog"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Records keeps small documents durably, by kind and id.
type Records interface {
	Save(kind, id string, v any) error
	// Load reads into v what Save wrote; the error of a record that is not there
	// is of kind fault.NotFound.
	Load(kind, id string, v any) error
	// IDs lists the records of a kind. Corrupt ones are left out.
	IDs(kind string) ([]string, error)
	// Remove forgets a record; one that is not there is no error.
	Remove(kind, id string) error
}

// Options say where a Store keeps things and how it pulls. Root, State and
// Records are required.
type Options struct {
	Root    string // layers, writable layers and staging; on the disk that holds images
	State   string // mounts; a directory that a reboot empties
	Records Records
	Unclean bool // the machine went down without a clean stop: verify the layers committed last

	RegistriesConf    string // registries.conf(5); "" means $CONTAINERS_REGISTRIES_CONF, then /etc/containers
	RegistriesConfDir string // "" means registries.conf.d beside the default file
	PolicyPath        string // policy.json(5); "" means /etc/containers/policy.json, or accept everything if there is none
	AuthFile          string // containers-auth.json(5); "" means $REGISTRY_AUTH_FILE, then the usual places and /etc/containers/auth.json

	Pinned           []string      // names of images that are reported as pinned: exact, or patterns as path.Match knows them
	MaxParallel      int           // layers that one pull downloads and unpacks at once; 0 means 4
	ProgressTimeout  time.Duration // a pull in which no byte arrives for so long is given up; 0 means never
	Log              *slog.Logger  // nil means slog.Default()
}

// An Image is one image: one config, whatever names it goes by. It is a plain
// value; a copy is a snapshot.
type Image struct {
	ID        string    // "sha256:" and the digest of the config, in hex
	Tags      []string  // full names with their tag, sorted: "docker.io/library/busybox:latest"
	Digests   []string  // full names with the digest that was pulled, sorted: "docker.io/library/busybox@sha256:…"
	Size      uint64    // bytes of the unpacked layers; never 0
	Config    v1.Image  // as it came, environment and user included
	Pinned    bool      // not to be collected
	CreatedAt time.Time // when it was first pulled or loaded here
}

// Auth is what a caller knows about a registry's account. The zero value means
// none: then the node's own credentials apply.
type Auth struct {
	Username, Password string
	Auth               string // base64 of "user:password"; used if Username is empty
	IdentityToken      string // OAuth2 refresh token
	RegistryToken      string // bearer token, sent as it is
	ServerAddress      string // if not empty, the rest is sent to this registry only
}

// FsInfo tells how much the images and the writable layers occupy.
type FsInfo struct {
	Mountpoint string // a directory on the file system that holds them
	UsedBytes  uint64 // allocated on disk
	Inodes     uint64
}

// A PullError is a failed pull that the kubelet tells apart by its reason.
type PullError struct {
	Reason string // RegistryUnavailable or SignatureValidationFailed
	Err    error
}

// The reasons of a PullError, as k8s.io/cri-api/pkg/errors names them.
const (
	RegistryUnavailable       = "RegistryUnavailable"
	SignatureValidationFailed = "SignatureValidationFailed"
)

// Error starts with the reason and a colon, which is what the kubelet parses.
func (e *PullError) Error() string { return e.Reason + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *PullError) Unwrap() error { return e.Err }
