// Package wire is the protocol between crispd and crisp-executor: calls, answers, events and
// file descriptors over one unix stream socket.
//
// crisp has its own protocol because it needs two things that the usual libraries do not offer
// together: passing descriptors, and staying small. The executor's program is executed for each
// container and each exec, so every start pays for each package that it initializes. This
// package uses only the standard library, x/sys, internal/fault and the runtime-spec's types.
//
// A frame is
//
//	4 bytes  length of the header, big endian
//	4 bytes  length of the body, big endian
//	header   JSON, see header
//	body     JSON: the request, the reply or the event
//
// Descriptors travel with the first byte of the frame that names them (SCM_RIGHTS, unix(7)); the
// kernel never returns two frames' descriptors in one read, so they arrive in the order of their
// frames. A descriptor is identified by the Name of its os.File on both sides: "pidfd", "stdin",
// "stdout", "stderr", "pty".
//
// A connection carries any number of concurrent calls, answered in any order. If a caller gives
// up, the call is cancelled on the other side, and its answer discarded with its descriptors.
// Events go to connections that asked for them with MethodSubscribe.
//
// The kind of an error (internal/fault) survives the wire; its chain does not.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Protocol is the version of the protocol that this package speaks, which "hello" returns. Raise
// it when an old peer would misunderstand a new one.
const Protocol = 1

const (
	maxFrame = 64 << 20 // bytes; a spec is some 50 kB
	maxFiles = 16       // descriptors in one frame
)

// A header describes a frame. Exactly one of Method, Reply, Cancel and Event is
// set.
type header struct {
	ID     uint64   `json:"id,omitempty"`     // of the call; chosen by the client
	Method string   `json:"method,omitempty"` // a call
	Reply  bool     `json:"reply,omitempty"`  // the answer to call ID
	Cancel bool     `json:"cancel,omitempty"` // the caller of ID no longer waits
	Event  bool     `json:"event,omitempty"`  // the body is an Event
	Err    *failure `json:"err,omitempty"`    // of an answer
	FDs    []string `json:"fds,omitempty"`    // names of the attached descriptors
}

// A failure is an error on the wire.
type failure struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// A frame is a header with its body and descriptors.
type frame struct {
	header
	body  []byte
	files []*os.File
}

func (f *frame) closeFiles() { CloseAll(f.files) }

func newFailure(err error) *failure {
	return &failure{fault.KindOf(err).String(), err.Error()}
}

func (f *failure) err() error {
	for _, k := range []fault.Kind{fault.Invalid, fault.NotFound, fault.Exists, fault.WrongState, fault.Unavailable} {
		if f.Kind == k.String() {
			return k.Errorf("%s", f.Text)
		}
	}
	return fault.Internal.Errorf("%s", f.Text)
}

// CloseAll closes files that were sent, or that will not be.
func CloseAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// encode returns the bytes of a frame whose body is v; a nil v is an empty body.
func encode(h header, v any, files []*os.File) ([]byte, error) {
	if len(files) > maxFiles {
		return nil, fault.Invalid.Errorf("%d descriptors in one frame, at most %d", len(files), maxFiles)
	}
	for _, f := range files {
		h.FDs = append(h.FDs, f.Name())
	}
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	var body []byte
	if v != nil {
		if body, err = json.Marshal(v); err != nil {
			return nil, err
		}
	}
	if len(head)+len(body) > maxFrame {
		return nil, fault.Invalid.Errorf("frame of %d bytes, at most %d", len(head)+len(body), maxFrame)
	}
	out := make([]byte, 8, 8+len(head)+len(body))
	binary.BigEndian.PutUint32(out, uint32(len(head)))
	binary.BigEndian.PutUint32(out[4:], uint32(len(body)))
	return append(append(out, head...), body...), nil
}

// send writes one frame. The caller serializes calls and keeps files open until
// it returns.
func send(c *net.UnixConn, data []byte, files []*os.File) error {
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			// Not Fd, which would make a file of the poller blocking.
			raw, err := f.SyscallConn()
			if err != nil {
				return err
			}
			if err := raw.Control(func(fd uintptr) { fds[i] = int(fd) }); err != nil {
				return fmt.Errorf("descriptor %s: %w", f.Name(), err)
			}
		}
		n, _, err := c.WriteMsgUnix(data, unix.UnixRights(fds...), nil)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	_, err := c.Write(data) // Write, unlike WriteMsgUnix, writes everything
	return err
}

// A reader reads frames from a connection.
type reader struct {
	conn  *net.UnixConn
	files []int // received, not yet claimed by a frame
}

// Read implements io.Reader, and keeps the descriptors that arrive with the bytes.
func (r *reader) Read(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, _, _, err := r.conn.ReadMsgUnix(p, oob) // descriptors come with close-on-exec
	if oobn > 0 {
		msgs, perr := unix.ParseSocketControlMessage(oob[:oobn])
		for i := range msgs {
			if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil {
				r.files = append(r.files, fds...)
			}
		}
		if perr != nil {
			return n, perr
		}
	}
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// next returns the next frame. The caller owns its files.
func (r *reader) next() (*frame, error) {
	var sizes [8]byte
	if _, err := io.ReadFull(r, sizes[:]); err != nil {
		return nil, err
	}
	head, body := binary.BigEndian.Uint32(sizes[:]), binary.BigEndian.Uint32(sizes[4:])
	if uint64(head)+uint64(body) > maxFrame {
		return nil, fault.Invalid.Errorf("frame of %d bytes, at most %d", uint64(head)+uint64(body), maxFrame)
	}
	data := make([]byte, head+body)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, err
	}
	f := &frame{body: data[head:]}
	if err := json.Unmarshal(data[:head], &f.header); err != nil {
		return nil, fmt.Errorf("header of a frame: %w", err)
	}
	if len(f.FDs) > len(r.files) {
		return nil, fmt.Errorf("frame names %d descriptors, %d arrived", len(f.FDs), len(r.files))
	}
	for i, name := range f.FDs {
		f.files = append(f.files, os.NewFile(uintptr(r.files[i]), name))
	}
	r.files = r.files[len(f.FDs):]
	return f, nil
}

// close closes descriptors that no frame claimed.
func (r *reader) close() {
	for _, fd := range r.files {
		unix.Close(fd)
	}
	r.files = nil
}

// unmarshal decodes a body into v; it does nothing if either is empty.
func unmarshal(body []byte, v any) error {
	if v == nil || len(body) == 0 {
		return nil
	}
	return json.Unmarshal(body, v)
}
