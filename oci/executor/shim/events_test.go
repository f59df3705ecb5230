package shim

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/ttrpc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/crisp-cri/crisp/internal/unixsock"
)

// serveEvents returns the path of the service and the events that it receives.
func serveEvents(t *testing.T) (string, <-chan Event) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "events")
	l, err := unixsock.Listen(path, unixsock.Options{Mode: 0o600, Dir: 0o700})
	if err != nil {
		t.Fatal(err)
	}
	received, served := make(chan Event, 100), make(chan error)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- Serve(ctx, l, func(e Event) { received <- e }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if len(received) > 0 {
			t.Errorf("%d more events", len(received))
		}
	})
	return path, received
}

func dialEvents(t *testing.T, path string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// Exits and OOM kills arrive once each, as containerd's own client and messages send them; all other
// events are answered and ignored.
func TestEvents(t *testing.T) {
	path, received := serveEvents(t)
	client := ttrpc.NewClient(dialEvents(t, path))
	t.Cleanup(func() { client.Close() })
	publish := func(topic string, event proto.Message) error {
		payload, err := anypb.New(event)
		if err != nil {
			t.Fatal(err)
		}
		payload.TypeUrl = strings.TrimPrefix(payload.TypeUrl, "type.googleapis.com/") // as containerd's typeurl has it
		_, err = eventsapi.NewTTRPCEventsClient(client).Forward(t.Context(), &eventsapi.ForwardRequest{
			Envelope: &types.Envelope{Timestamp: timestamppb.New(at), Namespace: "k8s.io", Topic: topic, Event: payload},
		})
		return err
	}
	for _, tt := range []struct {
		topic string
		event proto.Message
		want  *Event
	}{
		{exitTopic, &events.TaskExit{ContainerID: "c", ID: "c", Pid: 5, ExitStatus: 137, ExitedAt: timestamppb.New(at)}, &Event{ContainerID: "c", Exit: &Exit{5, 137, at}}},
		{exitTopic, &events.TaskExit{ContainerID: "c", ID: "e"}, &Event{ContainerID: "c", ExecID: "e", Exit: &Exit{}}},
		{oomTopic, &events.TaskOOM{ContainerID: "c"}, &Event{ContainerID: "c"}},
		{oomTopic, &events.TaskExit{ContainerID: "c"}, nil},
		{exitTopic, &events.TaskOOM{ContainerID: "c"}, nil},
		{exitTopic, &events.TaskExit{ID: "of no container"}, nil},
		{"/tasks/start", &events.TaskStart{ContainerID: "c", Pid: 5}, nil},
		{"/tasks/delete", &events.TaskDelete{ContainerID: "c", Pid: 5}, nil},
		{"/later/topic", &types.Mount{Type: "x"}, nil},
	} {
		if err := publish(tt.topic, tt.event); err != nil {
			t.Errorf("%s: %v", tt.topic, err)
		}
		if tt.want == nil {
			continue
		}
		tt.want.Namespace, tt.want.Publisher = "k8s.io", os.Getpid()
		if diff := cmp.Diff(*tt.want, <-received); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.topic, diff)
		}
	}
	if err := client.Call(t.Context(), "containerd.task.v2.Task", "State", &types.Mount{}, &types.Mount{}); err == nil || !strings.Contains(err.Error(), "only events") {
		t.Errorf("another service: %v", err)
	}
	if err := publish(oomTopic, &events.TaskOOM{ContainerID: "c"}); err != nil {
		t.Errorf("after that: %v", err)
	}
	<-received
}

// What a hostile shim sends is refused, and the next shim is served.
func TestHostilePublisher(t *testing.T) {
	path, received := serveEvents(t)
	conn := dialEvents(t, path)
	ask := func(f frame) response {
		t.Helper()
		if _, err := conn.Write(f.bytes()); err != nil {
			t.Fatal(err)
		}
		got, err := readFrame(conn, maxData)
		if err != nil || got.stream != f.stream {
			t.Fatalf("the answer is %v (%v)", got, err)
		}
		r, err := decodeResponse(got.data)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	oom := func(id string) []byte {
		value, err := anypb.New(&events.TaskOOM{ContainerID: id})
		if err != nil {
			t.Fatal(err)
		}
		return request{
			service: "containerd.services.events.ttrpc.v1.Events", method: "Forward",
			payload: marshal(t, &eventsapi.ForwardRequest{Envelope: &types.Envelope{Topic: oomTopic, Event: value}}),
		}.encode()
	}
	conn.Write(frame{1, 3, oom("data")}.bytes()) // is not answered
	for i, tt := range []struct {
		f    frame
		want code
	}{
		{frame{2, requestFrame, oom("even")}, codeInvalidArgument},
		{frame{3, requestFrame, oom("c")}, codeOK},
		{frame{3, requestFrame, oom("twice")}, codeInvalidArgument},
		{frame{1, requestFrame, oom("earlier")}, codeInvalidArgument},
		{frame{5, requestFrame, []byte{7}}, codeInvalidArgument},
		{frame{7, requestFrame, request{service: "containerd.services.events.ttrpc.v1.Events", method: "Forward", payload: []byte{7}}.encode()}, codeInvalidArgument},
		{frame{9, requestFrame, request{service: "x"}.encode()}, codeUnimplemented},
		{frame{11, requestFrame, request{service: "containerd.services.events.ttrpc.v1.Events", method: "Forward"}.encode()}, codeOK},
	} {
		if r := ask(tt.f); r.code != tt.want {
			t.Errorf("%d: the code is %d (%s), want %d", i, r.code, r.text, tt.want)
		}
	}
	if e := <-received; e.ContainerID != "c" {
		t.Errorf("%+v was received", e)
	}
	conn.Write([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 13, requestFrame, 0})
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes after a frame that is too long", n)
	}
	conn = dialEvents(t, path) // runwasi expects containerd's gRPC at the address, and does without it
	fmt.Fprint(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes for HTTP", n)
	}
	conn = dialEvents(t, path)
	if r := ask(frame{1, requestFrame, oom("c")}); r.code != codeOK {
		t.Errorf("the next shim: code %d", r.code)
	}
	<-received
}

// Lines of a shim's log arrive whole, long ones cut, and a flood is dropped without blocking it.
func TestLog(t *testing.T) {
	bundle := t.TempDir()
	l, err := OpenLog(bundle)
	if err != nil {
		t.Fatal(err)
	}
	lines, ended := make(chan string, maxLines+10), make(chan struct{})
	go func() {
		defer close(ended)
		l.Lines(func(line string) { lines <- line })
	}()
	shim, err := os.OpenFile(filepath.Join(bundle, "log"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(shim, "one\n%s\nthree\n", strings.Repeat("x", 3*maxLine))
	for i, want := range []string{"one", strings.Repeat("x", maxLine), "three"} {
		if got := <-lines; got != want {
			t.Errorf("line %d has %d bytes: %.100s", i, len(got), got)
		}
	}
	slog.New(slog.NewTextHandler(shim, nil)).Info("text")
	for i := range 10000 {
		fmt.Fprintln(shim, "flood", i) // fills the FIFO, unless it is read
	}
	shim.Close()
	for count := 0; ; count++ {
		if got := <-lines; got == dropNotice {
			break
		}
		if count > maxLines {
			t.Fatal("nothing is dropped")
		}
	}
	l.Close()
	go func() {
		<-ended
		close(lines)
	}()
	for range lines { // what is left
	}

	again, err := OpenLog(bundle) // by the next executor
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if err := os.Remove(filepath.Join(bundle, "log")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLog(bundle); err == nil || !strings.Contains(err.Error(), "is no FIFO") {
		t.Errorf("a file in its place: %v", err)
	}
}
