package executor

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/oci/wire"
)

// shutting begins an upgrade, as far as the gate is concerned, and returns when the gate is
// shut. The channel gets whether the upgrade was completed.
func shutting(t *testing.T, g *gate) <-chan bool {
	t.Helper()
	closed := make(chan bool, 1)
	go func() { closed <- g.close(time.Minute, 20*time.Second) }()
	awaitGate(t, g, func() bool { return g.shut })
	return closed
}

func awaitGate(t *testing.T, g *gate, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		ok := is()
		g.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the gate is not as it should be")
		}
	}
}

// blocked is the time in which a goroutine should reach its wait for the gate. If it takes longer,
// a test that should fail passes.
const blocked = 200 * time.Millisecond

// A container that ends during an upgrade, while a client types into it, does not hold up
// the upgrade: the input waits for the gate, and the end of the container waits for
// nothing.
func TestExitDoesNotWaitForWhoTypes(t *testing.T) {
	x := newExecutor(t)
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &container{settings: settings{Settings: wire.Settings{ID: "c1"}}, phase: running, ownPID: true, gone: make(chan struct{}), exit: exitOf("c1", 0, false, time.Now())}
	var err error
	if c.proc, err = newChild(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	theirs, stdin, err := pipe("stdin", false)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	client, ours, err := pipe("stdin", true)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c.io = newStdio(c.settings, nil, stdin, nil, nil, nil)
	a := attaches(0, true)
	a.stdin = ours
	if !c.io.attach(a, &x.gate, x.log) {
		t.Fatal("not attached")
	}

	watched := make(chan struct{})
	go func() { x.watch(c); close(watched) }() // waits for the process, inside the gate
	awaitGate(t, &x.gate, func() bool { return x.gate.in == 1 })
	closed := shutting(t, &x.gate)
	if _, err := client.WriteString("typed\n"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(blocked)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !<-closed {
		t.Fatal("the upgrade was given up")
	}
	x.gate.open()
	<-watched
	if _, err := client.WriteString("more\n"); err == nil {
		t.Error("the container has ended, and its stdin takes input still")
	}
}

// During an upgrade a client is dropped because it does not read one stream, while its
// other stream is about to go on, and waits for the gate.
func TestDroppingAClientDoesNotWaitForItsOtherStream(t *testing.T) {
	s := &stdio{id: "c1"}
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
	var g gate
	other := &output{stream: crilog.Stderr}
	settled := make(chan struct{})
	go func() { s.settle(other, &g); close(settled) }()
	time.Sleep(blocked) // until it waits for room

	g.enter() // as the pump of stdout
	closed := shutting(t, &g)
	if _, err := readers[crilog.Stderr].Read(make([]byte, attachRoom)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(blocked)
	left := make(chan struct{})
	go func() {
		s.tee(&output{stream: crilog.Stdout}, []byte("x"))
		g.leave()
		close(left)
	}()
	if !<-closed {
		t.Error("the upgrade was given up")
	} else {
		g.open()
	}
	<-left
	<-settled
	if len(s.attachments()) > 0 {
		t.Error("the client is not dropped")
	}
}
