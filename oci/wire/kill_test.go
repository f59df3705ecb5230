package wire_test

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// listenerEnv makes the test binary the process that TestKill kills.
const listenerEnv = "WIRE_TEST_LISTEN"

// Kill kills the process that listens, though it does not answer, and kills nothing once
// that has exited.
func TestKill(t *testing.T) {
	if path := os.Getenv(listenerEnv); path != "" {
		if _, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("listening\n")
		select {} // and accepts no connection
	}
	path := t.TempDir() + "/s"
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
	cmd.Env = append(os.Environ(), listenerEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "listening\n" {
		t.Fatalf("the listener says %q, %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c, err := wire.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	for range c.Events() { // until the connection ends
	}
	err = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("the listener ended with %v", err)
	}
	if err := c.Kill(); err != nil {
		t.Errorf("kill of a process that has ended: %v", err)
	}
	if _, err := c.Call(t.Context(), wire.MethodHello, nil, nil); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a call afterwards: %v", err)
	}
}
