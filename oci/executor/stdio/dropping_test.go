package stdio

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/oci/executor/gate"
	"github.com/crisp-cri/crisp/test/gatetest"
)

// During an upgrade a client is dropped because it does not read one stream, while its
// other stream is about to go on, and waits for the gate.
func TestDroppingAClientDoesNotWaitForItsOtherStream(t *testing.T) {
	s := &Streams{id: "c1"}
	a := attaches(0, false)
	readers := make(map[string]*os.File)
	full := make([]byte, attachRoom)
	for _, stream := range []string{crilog.Stdout, crilog.Stderr} {
		theirs, ours, err := pipe(stream, false)
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		a.add(stream, ours, []byte("owed"))
		if _, err := a.write(stream, full); err != unix.EAGAIN {
			t.Fatalf("the pipe is not full: %v", err)
		}
		readers[stream] = theirs
	}
	s.attached = []*attachment{a}
	var g gate.Gate
	other := &output{stream: crilog.Stderr}
	settled := make(chan struct{})
	go func() { s.settle(other, &g); close(settled) }()
	time.Sleep(gatetest.Blocked) // until it waits for room

	g.Enter() // as the pump of stdout
	closed := gatetest.Shut(t, &g)
	if _, err := readers[crilog.Stderr].Read(make([]byte, attachRoom)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(gatetest.Blocked)
	left := make(chan struct{})
	go func() {
		s.tee(&output{stream: crilog.Stdout}, []byte("x"))
		g.Leave()
		close(left)
	}()
	if !<-closed {
		t.Error("the upgrade was given up")
	} else {
		g.Open()
	}
	<-left
	<-settled
	if len(s.attachments()) > 0 {
		t.Error("the client is not dropped")
	}
}
