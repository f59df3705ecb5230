package server

import (
	"bytes"
	"context"
	"strings"
	"sync"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
)

// index caches decoded records by ID, so that lists decode nothing. What is missing is decoded
// from oci's records.
type index struct {
	sandboxes  sync.Map // string → *decodedSandbox
	containers sync.Map // string → *containerRecord
}

// A decodedSandbox is a record and what it was decoded from: it holds as long as that is the
// sandbox's Extra, so that memory cannot differ from disk.
type decodedSandbox struct {
	extra  []byte
	record *sandboxRecord
}

// sandbox returns the server's record of sb. If the record cannot be decoded (its checksum was
// right, so a newer crispd wrote it), the sandbox has only its name: it must still be listed, or
// no client would ever remove it.
func (x *index) sandbox(sb *oci.Sandbox) *sandboxRecord {
	extra := sb.Extra()
	if d, ok := x.sandboxes.Load(sb.ID()); ok && bytes.Equal(d.(*decodedSandbox).extra, extra) { // the same array is compared at once
		return d.(*decodedSandbox).record
	}
	r, err := decodeSandbox(extra)
	if err != nil {
		m := new(cri.PodSandboxMetadata)
		if f := strings.Split(sb.Config().Name, "_"); len(f) == 4 {
			m.Name, m.Namespace, m.Uid = f[0], f[1], f[2]
		}
		r = &sandboxRecord{config: &cri.PodSandboxConfig{Metadata: m}}
	}
	x.sandboxes.Store(sb.ID(), &decodedSandbox{extra, r})
	if sb.State() == oci.SandboxRemoving {
		x.sandboxes.Delete(sb.ID()) // the event that it is gone may be over
	}
	return r
}

// editSandbox changes the record of sb, on disk first, one change after another.
func (x *index) editSandbox(sb *oci.Sandbox, change func(*sandboxRecord)) error {
	return sb.EditExtra(func(extra []byte) ([]byte, error) {
		r, err := decodeSandbox(extra)
		if err != nil {
			return nil, err
		}
		change(r)
		return r.encode()
	})
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
	got, _ := x.containers.LoadOrStore(c.ID(), r)
	x.dropRemoved(c)
	return got.(*containerRecord)
}

// dropRemoved is called after a record was stored: the event that its container is gone may be over.
func (x *index) dropRemoved(c *oci.Container) {
	if c.Status().State == oci.Removing {
		x.containers.Delete(c.ID())
	}
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
	x.dropRemoved(c)
	return nil
}
