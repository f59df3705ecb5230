package server

import (
	"context"
	"strings"
	"sync"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
)

// index caches decoded records by ID, so that lists decode nothing. What is missing is decoded
// from oci's records.
type index struct {
	sandboxes  sync.Map // string → *sandboxRecord
	containers sync.Map // string → *containerRecord
}

// sandbox returns the server's record of sb. If the record cannot be decoded (its checksum was
// right, so a newer crispd wrote it), the sandbox has only its name: it must still be listed, or
// no client would ever remove it.
func (x *index) sandbox(sb *oci.Sandbox) *sandboxRecord {
	if r, ok := x.sandboxes.Load(sb.ID()); ok {
		return r.(*sandboxRecord)
	}
	r, err := decodeSandbox(sb.Extra())
	if err != nil {
		m := new(cri.PodSandboxMetadata)
		if f := strings.Split(sb.Config().Name, "_"); len(f) == 4 {
			m.Name, m.Namespace, m.Uid = f[0], f[1], f[2]
		}
		r = &sandboxRecord{config: &cri.PodSandboxConfig{Metadata: m}}
	}
	if sb.State() == oci.SandboxRemoving {
		return r // caching it now would keep it for ever
	}
	got, _ := x.sandboxes.LoadOrStore(sb.ID(), r)
	return got.(*sandboxRecord)
}

// container returns the server's record of c.
func (x *index) container(c *oci.Container) *containerRecord {
	if r, ok := x.containers.Load(c.ID()); ok {
		return r.(*containerRecord)
	}
	r, err := decodeContainer(c.Extra())
	if err != nil {
		name, _, _ := strings.Cut(c.Config().Name, "_")
		r = &containerRecord{
			config:    &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: name}},
			imageUser: new(cri.ContainerUser),
			imageRef:  "unknown",
			signal:    cri.Signal_SIGNAL_SIGTERM,
		}
	}
	if c.Status().State == oci.Removing {
		return r
	}
	got, _ := x.containers.LoadOrStore(c.ID(), r)
	return got.(*containerRecord)
}

// saveSandbox replaces the record of sb, first on disk.
func (x *index) saveSandbox(sb *oci.Sandbox, r *sandboxRecord) error {
	extra, err := r.encode()
	if err != nil {
		return err
	}
	if err := sb.SetExtra(extra); err != nil {
		return err
	}
	x.sandboxes.Store(sb.ID(), r)
	return nil
}

// applyContainer changes c and replaces its record, both or neither, first on disk.
func (x *index) applyContainer(ctx context.Context, c *oci.Container, change oci.Change, r *containerRecord) (err error) {
	if change.Extra, err = r.encode(); err != nil {
		return err
	}
	if err := c.Apply(ctx, change); err != nil {
		return err
	}
	x.containers.Store(c.ID(), r)
	return nil
}
