package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/server/selinux"
)

// extraVersion is the version of the documents below. A new field needs no new version; a change
// that an older crispd would misread does.
const extraVersion = 1

// A sandboxRecord is what the server stores about a sandbox, decoded. It is a snapshot: replaced
// as a whole, never changed.
type sandboxRecord struct {
	config  *cri.PodSandboxConfig // as the kubelet sent it
	handler string
	ips     []string // primary first; nil with the host's network and before ADD
	// detached says that the network is gone: the addresses are no longer the sandbox's. They stay
	// on record for plugins, which know it by them.
	detached bool

	resources *cri.UpdatePodSandboxResourcesRequest // what the kubelet last sent; may be nil
	labels    selinux.Labels                        // the pod's; a container may have others
}

// sandboxExtra is a sandboxRecord on disk.
type sandboxExtra struct {
	Version   int
	Config    []byte
	Handler   string   `json:",omitempty"`
	IPs       []string `json:",omitempty"`
	Detached  bool     `json:",omitempty"`
	Resources []byte   `json:",omitempty"`
	Labels    selinux.Labels
}

// messages returns the messages of r, each with its field in e.
func (r *sandboxRecord) messages(e *sandboxExtra) []storedMessage {
	return []storedMessage{
		stored("sandbox config", &r.config, &e.Config),
		stored("sandbox resources", &r.resources, &e.Resources),
	}
}

// addresses returns the addresses that the sandbox has now, primary first.
func (r *sandboxRecord) addresses() []string {
	if r.detached {
		return nil
	}
	return r.ips
}

func (r *sandboxRecord) encode() ([]byte, error) {
	e := sandboxExtra{Version: extraVersion, Handler: r.handler, IPs: r.ips, Detached: r.detached, Labels: r.labels}
	if err := encodeMessages(r.messages(&e)); err != nil {
		return nil, err
	}
	return json.Marshal(e)
}

func decodeSandbox(extra []byte) (*sandboxRecord, error) {
	var e sandboxExtra
	if err := unmarshalExtra(extra, &e, &e.Version); err != nil {
		return nil, err
	}
	r := &sandboxRecord{config: new(cri.PodSandboxConfig), handler: e.Handler, ips: e.IPs, detached: e.Detached, labels: e.Labels}
	return r, decodeMessages(r.messages(&e))
}

// A containerRecord is what the server stores about a container, decoded. It is a snapshot like
// a sandboxRecord.
type containerRecord struct {
	config    *cri.ContainerConfig // as the kubelet sent it
	imageID   string               // of the image it was created from
	imageRef  string               // a digest of it, or its ID; never empty
	original  *cri.ImageSpec       // of a restored container: the image of the original; else nil
	imageUser *cri.ContainerUser
	signal    cri.Signal                   // sent by Stop
	resources *cri.LinuxContainerResources // in force; may be nil
	volumes   []string                     // keys of the image mounts

	mountImages map[int]string // index in config.Mounts → ID of the image mounted there
}

// containerExtra is a containerRecord on disk.
type containerExtra struct {
	Version   int
	Config    []byte
	ImageID   string
	ImageRef  string
	User      []byte
	Signal    int32
	Resources []byte   `json:",omitempty"`
	Volumes   []string `json:",omitempty"`

	MountImages map[int]string `json:",omitempty"`
	Original    []byte         `json:",omitempty"`
}

// messages returns the messages of r, each with its field in e.
func (r *containerRecord) messages(e *containerExtra) []storedMessage {
	return []storedMessage{
		stored("container config", &r.config, &e.Config),
		stored("container user", &r.imageUser, &e.User),
		stored("container resources", &r.resources, &e.Resources),
		stored("original image", &r.original, &e.Original),
	}
}

func (r *containerRecord) encode() ([]byte, error) {
	e := containerExtra{Version: extraVersion, ImageID: r.imageID, ImageRef: r.imageRef, Signal: int32(r.signal), Volumes: r.volumes, MountImages: r.mountImages}
	if err := encodeMessages(r.messages(&e)); err != nil {
		return nil, err
	}
	return json.Marshal(e)
}

func decodeContainer(extra []byte) (*containerRecord, error) {
	var e containerExtra
	if err := unmarshalExtra(extra, &e, &e.Version); err != nil {
		return nil, err
	}
	r := &containerRecord{
		config: new(cri.ContainerConfig), imageID: e.ImageID, imageRef: e.ImageRef, imageUser: new(cri.ContainerUser),
		signal: cri.Signal(e.Signal), volumes: e.Volumes, mountImages: e.MountImages,
	}
	if err := decodeMessages(r.messages(&e)); err != nil {
		return nil, err
	}
	for i := range e.MountImages {
		if i < 0 || i >= len(r.config.Mounts) || r.config.Mounts[i].Image == nil {
			return nil, fmt.Errorf("decode record: mount %d has no image", i)
		}
	}
	return r, nil
}

// image returns the image that the container was created from; of a restored container it is the
// original's, not the checkpoint.
func (r *containerRecord) image() *cri.ImageSpec {
	if r.original != nil {
		return r.original
	}
	return r.config.GetImage()
}

// noteMountImage records the ID of the image of the i-th mount.
func (r *containerRecord) noteMountImage(i int, id string) {
	if r.mountImages == nil {
		r.mountImages = map[int]string{}
	}
	r.mountImages[i] = id
}

// mounts returns the container's mounts for its status: as requested, with the ID of each
// mounted image. CRI: ImageSpec.image_ref is "the digest of the image used for this volume",
// similar to the status's image ID.
func (r *containerRecord) mounts() []*cri.Mount {
	if len(r.mountImages) == 0 {
		return r.config.Mounts
	}
	list := slices.Clone(r.config.Mounts)
	for i, id := range r.mountImages {
		list[i] = proto.Clone(list[i]).(*cri.Mount)
		list[i].Image.ImageRef = id
	}
	return list
}

// A storedMessage is a message of a record with its field on disk, in protobuf's own encoding,
// which keeps fields that a newer kubelet sent and we do not know.
type storedMessage struct {
	what    string
	message proto.Message
	fresh   func() proto.Message // puts an empty message into the record
	bytes   *[]byte              // nil = there is no message
}

func stored[T any, M interface {
	*T
	proto.Message
}](what string, message *M, bytes *[]byte) storedMessage {
	return storedMessage{what, *message, func() proto.Message { *message = new(T); return *message }, bytes}
}

func encodeMessages(list []storedMessage) (err error) {
	for _, m := range list {
		if *m.bytes, err = proto.Marshal(m.message); err != nil {
			return fmt.Errorf("encode %s: %w", m.what, err)
		}
	}
	return nil
}

// decodeMessages decodes each message into the record. A message missing on disk leaves the
// record as it is.
func decodeMessages(list []storedMessage) error {
	for _, m := range list {
		if *m.bytes == nil {
			continue
		}
		if err := proto.Unmarshal(*m.bytes, m.fresh()); err != nil {
			return fmt.Errorf("decode %s: %w", m.what, err)
		}
	}
	return nil
}

func unmarshalExtra(extra []byte, v any, version *int) error {
	if err := json.Unmarshal(extra, v); err != nil {
		return fmt.Errorf("decode record: %w", err)
	}
	if *version != extraVersion {
		return fmt.Errorf("decode record: version %d is not %d", *version, extraVersion)
	}
	return nil
}

// sandboxName returns the name of a sandbox before it has an ID. The kubelet repeats it after a
// timeout, and raises the attempt only after it has seen the sandbox.
func sandboxName(m *cri.PodSandboxMetadata) string {
	return strings.Join([]string{m.GetName(), m.GetNamespace(), m.GetUid(), fmt.Sprint(m.GetAttempt())}, "_")
}

// containerName is sandboxName for a container.
func containerName(m *cri.ContainerMetadata, sandbox *cri.PodSandboxMetadata) string {
	return strings.Join([]string{m.GetName(), sandbox.GetName(), sandbox.GetNamespace(), sandbox.GetUid(), fmt.Sprint(m.GetAttempt())}, "_")
}
