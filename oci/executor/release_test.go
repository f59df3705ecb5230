package executor

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/gatetest"
)

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
	if c.proc, err = proc.Open(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	theirs, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	c.io = stdio.NewStreams(c.settings.Settings, nil, stdin, nil, nil, nil)
	clients, err := c.io.Attach(0, true, false, &x.gate, x.log)
	if err != nil {
		t.Fatal(err)
	}
	client := clients[0]
	defer client.Close()

	watched := make(chan struct{})
	go func() { x.watch(c); close(watched) }() // waits for the process, inside the gate
	gatetest.Await(t, &x.gate, func(inside int, _ bool) bool { return inside == 1 })
	closed := gatetest.Shut(t, &x.gate)
	if _, err := client.WriteString("typed\n"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(gatetest.Blocked)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !<-closed {
		t.Fatal("the upgrade was given up")
	}
	x.gate.Open()
	<-watched
	if _, err := client.WriteString("more\n"); err == nil {
		t.Error("the container has ended, and its stdin takes input still")
	}
}
