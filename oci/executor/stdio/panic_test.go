package stdio

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/oci/executor/gate"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A panic in the reader of one container's output affects only that stream: it continues, or ends
// if it cannot, and the executor and all other containers are not affected.
func TestPanicEndsOneStream(t *testing.T) {
	var said bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&said, nil))
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	s := NewStreams(wire.Settings{ID: "c1"}, nil, nil, out, nil, nil)
	// An attachment without the map of what is still to be sent to its client.
	broken := &attachment{outs: map[string]*os.File{crilog.Stdout: out}}
	s.attached = []*attachment{broken}
	s.Start(new(gate.Gate), nil, log)
	<-s.outs[0].done
	if got := strings.Count(said.String(), "work for a container panicked"); got != gate.Retries || !strings.Contains(said.String(), `"container":"c1"`) {
		t.Errorf("it panicked %d times: %s", got, said.String())
	}
	if _, err := in.WriteString("x"); err == nil {
		t.Error("the stream is no longer read, and the container can still write to it")
	}
}
