package network

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// orphan leaves an ADD for the pod as a killed daemon would: the lock is held only by a process
// that runs command and prints a line when it has started. It returns the process and that line.
func orphan(t *testing.T, n *Network, p Pod, attr *syscall.SysProcAttr, command string) (*exec.Cmd, string) {
	t.Helper()
	conf, err := n.usable()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.saveAttachment(n.newAttachment(conf, p)); err != nil {
		t.Fatal(err)
	}
	ctx, _, err := n.lock(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	f := workOf(ctx).lock
	cmd := exec.Command("sh", "-c", command)
	cmd.SysProcAttr, cmd.ExtraFiles = attr, []*os.File{f}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	working.Delete(f.Name())
	return cmd, strings.TrimSpace(line)
}

// The ADD of a killed crispd hangs, with a child that has closed the inherited descriptors: both
// are killed, and the pod can be stopped.
func TestPodOfAHungPluginCanBeStopped(t *testing.T) {
	n := open(t, options(t, ""))
	n.orphanLife = 50 * time.Millisecond
	p := pod(t, "p")
	hung, child := orphan(t, n, p, &syscall.SysProcAttr{Setpgid: true}, `trap "" TERM; sleep 1000 3>&- & echo $!; wait; sleep 1000`)
	other := exec.Command("sleep", "1000") // in our own process group
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		other.Process.Kill()
		other.Wait()
	}()
	detach(t, n, p)
	err := hung.Wait()
	if status, ok := hung.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != unix.SIGKILL {
		t.Errorf("the plugin ended with %v (%v)", hung.ProcessState, err)
	}
	waitDead(t, child)
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("another process was killed: %v", err)
	}
	attach(t, n, p)
	detach(t, n, p)
	destroy(t, n)
}

// A plugin has left a daemon that also serves other pods, in a session of its own; it has inherited
// the lock, and crispd was killed before it could unlock. The daemon is not killed, and the pod can
// be stopped.
func TestPodOfAPluginsDaemonCanBeStopped(t *testing.T) {
	n := open(t, options(t, ""))
	n.orphanLife = 50 * time.Millisecond
	p := pod(t, "p")
	daemon, _ := orphan(t, n, p, &syscall.SysProcAttr{Setsid: true}, `echo; exec sleep 1000`)
	detach(t, n, p)
	if data, err := os.ReadFile("/proc/" + strconv.Itoa(daemon.Process.Pid) + "/stat"); err != nil || strings.Contains(string(data), ") Z ") {
		t.Errorf("the daemon was killed: %s (%v)", data, err)
	}
	attach(t, n, p)
	detach(t, n, p)
	destroy(t, n)
}

// A plugin that this crispd runs is no orphan, however long it takes.
func TestSlowPluginIsNotKilled(t *testing.T) {
	o := options(t, "")
	n := open(t, o)
	n.orphanLife = time.Millisecond
	bin := t.TempDir()
	script(t, bin, "slow", `
[ $CNI_COMMAND = ADD ] && { touch `+bin+`/begun; sleep 1; echo '{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.7/24"}]}'; }
exit 0`)
	n.o.BinDirs = append(n.o.BinDirs, bin)
	n.cni.Path = n.o.BinDirs
	writeConf(t, o.ConfDir, "10-slow.conflist", `{"cniVersion":"1.0.0","name":"slow","plugins":[{"type":"slow"}]}`)
	n.load()
	p := pod(t, "p")
	added := make(chan error, 1)
	go func() {
		_, err := n.Attach(t.Context(), p)
		added <- err
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(bin + "/begun"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the plugin did not begin")
		}
	}
	detach(t, n, p)
	if err := <-added; err != nil {
		t.Errorf("attach: %v", err)
	}
}
