package shim

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/unixsock"
)

// An Event is one that a shim has published: the exit of a process, or an OOM kill. A shim can name
// any container, so an event is a reason to ask that container's own shim (Wait, State), and no answer.
type Event struct {
	Namespace   string
	ContainerID string
	ExecID      string // of an exit; "" = the container's own process
	Exit        *Exit  // nil = the container has had an OOM kill
	Publisher   int    // the PID of the process that published it; 0 = in a PID namespace that we do not see
}

// Topics of the events that are passed on.
const (
	exitTopic = "/tasks/exit"
	oomTopic  = "/tasks/oom"
)

// Bounds of what shims may have open with us.
const (
	maxPublishers = 1024    // connections; a shim has one
	maxEvent      = 1 << 20 // bytes of a request
)

// Serve is the service to which shims publish: containerd.services.events.ttrpc.v1.Events. It passes
// each event to handle, those of one shim one after the other, before the shim gets its answer: handle
// must not block. It returns once ctx has ended or the listener was closed, and all connections with it.
func Serve(ctx context.Context, l *unixsock.Listener, handle func(Event)) error {
	ctx, cancel := context.WithCancel(ctx)
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	places := make(chan struct{}, maxPublishers)
	for {
		conn, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				conn.Close()
			}
			return nil
		case err != nil: // too many files are open, for instance
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case places <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		open.Go(func() {
			defer func() { <-places }()
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			receive(conn, handle)
		})
	}
}

// acceptPause is how long Serve waits after a failed accept.
const acceptPause = 100 * time.Millisecond

// receive answers the requests of a connection until it ends.
func receive(conn *net.UnixConn, handle func(Event)) {
	publisher := 0
	if cred, err := unixsock.Peer(conn); err == nil {
		publisher = int(cred.Pid)
	}
	last := uint32(0)
	for {
		f, err := readFrame(conn, maxEvent)
		if err != nil {
			return
		}
		if f.kind != requestFrame {
			continue
		}
		var r response
		if f.stream%2 == 0 || f.stream <= last {
			r = response{code: codeInvalidArgument, text: "streams of a client have odd numbers that rise"}
		} else {
			last = f.stream
			r = answer(f.data, func(e Event) {
				e.Publisher = publisher
				handle(e)
			})
		}
		_ = conn.SetWriteDeadline(time.Now().Add(writeTime))
		if _, err := conn.Write(frame{f.stream, responseFrame, r.encode()}.bytes()); err != nil {
			return
		}
	}
}

// answer carries out a request.
func answer(data []byte, handle func(Event)) response {
	r, err := decodeRequest(data)
	if err != nil {
		return response{code: codeInvalidArgument, text: err.Error()}
	}
	if r.service != "containerd.services.events.ttrpc.v1.Events" || r.method != "Forward" {
		return response{code: codeUnimplemented, text: "only events are received here"}
	}
	e, known, err := decodeForward(r.payload)
	if err != nil {
		return response{code: codeInvalidArgument, text: err.Error()}
	}
	if known {
		handle(e)
	}
	return response{}
}

// decodeForward reads a ForwardRequest, and reports whether its event is one that is passed on.
func decodeForward(data []byte) (e Event, known bool, err error) {
	var topic string
	var event *Any
	err = decode(data, func(number int, v value) error {
		if number != 1 || v.wire != bytesType {
			return nil
		}
		return decode(v.bytes, func(number int, v value) (err error) { // the envelope
			switch {
			case number == 2:
				return v.text(&e.Namespace)
			case number == 3:
				return v.text(&topic)
			case number == 4 && v.wire == bytesType:
				event, err = decodeAny(v.bytes)
			}
			return err
		})
	})
	if err != nil || event == nil {
		return e, false, err
	}
	// The type is that of the topic, by its last part: a URL or the name alone.
	name := event.TypeURL[strings.LastIndex(event.TypeURL, "/")+1:]
	switch {
	case topic == exitTopic && name == "containerd.events.TaskExit":
		err = e.decodeExit(event.Value)
	case topic == oomTopic && name == "containerd.events.TaskOOM":
		err = decode(event.Value, func(number int, v value) error {
			if number == 1 {
				return v.text(&e.ContainerID)
			}
			return nil
		})
	default:
		return e, false, nil
	}
	return e, err == nil && e.ContainerID != "", err
}

// decodeExit reads a TaskExit, which has the container's ID also where it is of no exec.
func (e *Event) decodeExit(data []byte) error {
	e.Exit = &Exit{}
	err := decode(data, func(number int, v value) error {
		switch number {
		case 1:
			return v.text(&e.ContainerID)
		case 2:
			return v.text(&e.ExecID)
		}
		return eventFields.set(e.Exit, number, v)
	})
	if e.ExecID == e.ContainerID {
		e.ExecID = ""
	}
	return err
}
