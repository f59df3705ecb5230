package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/kernel"
)

// A serviceManager does what systemd does for crispd: it listens on NOTIFY_SOCKET, and keeps
// descriptors from one crispd to the next (sd_notify(3), sd_listen_fds(3)).
type serviceManager struct {
	conn *net.UnixConn

	mu   sync.Mutex
	kept map[string]*os.File
}

func newServiceManager(t *testing.T, n *node) *serviceManager {
	t.Helper()
	path := filepath.Join(n.dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	m := &serviceManager{conn: conn, kept: map[string]*os.File{}}
	served := make(chan struct{})
	go func() {
		defer close(served)
		m.serve()
	}()
	t.Cleanup(func() {
		conn.Close()
		<-served
		for _, f := range m.kept {
			f.Close()
		}
	})
	n.manage = func(cmd *exec.Cmd) {
		m.mu.Lock()
		defer m.mu.Unlock()
		var names []string
		for name, f := range m.kept {
			names = append(names, name)
			cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		}
		cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+path, fmt.Sprint("LISTEN_FDS=", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
		// Only a process itself knows its PID in advance.
		cmd.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
	}
	return m
}

func (m *serviceManager) serve() {
	data, oob := make([]byte, 4096), make([]byte, 256)
	for {
		n, rights, _, _, err := m.conn.ReadMsgUnix(data, oob)
		if err != nil {
			return
		}
		fields := map[string]string{}
		for line := range strings.Lines(string(data[:n])) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			fields[key] = value
		}
		var fds []int
		if messages, err := unix.ParseSocketControlMessage(oob[:rights]); err == nil {
			for i := range messages {
				more, _ := unix.ParseUnixRights(&messages[i])
				fds = append(fds, more...)
			}
		}
		m.mu.Lock()
		name := fields["FDNAME"]
		if old := m.kept[name]; old != nil && (fields["FDSTOREREMOVE"] == "1" || len(fds) > 0) {
			old.Close()
			delete(m.kept, name)
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			m.kept[name] = os.NewFile(uintptr(fd), name)
		}
		m.mu.Unlock()
	}
}

func (m *serviceManager) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.kept)
}

// crispd and the executor are both killed, as by a bug or a lack of memory. The service manager
// keeps the container's stdio open: the container continues to write, no line is lost, and its exit
// code is recorded. Afterwards the manager keeps no descriptor of it.
func TestBothKilled(t *testing.T) {
	n, config := startNode(t)
	if err := n.stopDaemon(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m := newServiceManager(t, n)
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	u := &unified{node: n, t: t, config: config}
	pod, err := n.sandboxConfig("p", []string{"host-network"})
	if err != nil {
		t.Fatal(err)
	}
	u.run(pod)
	u.begin("p", "writer", nil, "count", "-1", "10ms")
	_, pid := u.begin("p", "next", nil, "count", "300", "10ms", "await", "/go", "exit", "7")
	until := func(what string, yes func() bool) {
		t.Helper()
		for ; !yes(); time.Sleep(20 * time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatal(what)
			}
		}
	}
	until("the manager is not given stdout, stderr and pidfd of both", func() bool { return m.count() == 6 })
	writer := u.pid(n.ids["writer"])
	executor, err := n.executorPid()
	if err != nil {
		t.Fatal(err)
	}

	if err := n.stopDaemon(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(executor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until("the executor does not end", func() bool { return errors.Is(syscall.Kill(executor, 0), syscall.ESRCH) })
	time.Sleep(200 * time.Millisecond) // each container writes some lines without an executor
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}

	if now := u.pid(n.ids["writer"]); now != writer {
		t.Fatalf("the container's process is %d, was %d", now, writer)
	}
	numbered := func(name string) (lines int) {
		t.Helper()
		for line := range bytes.Lines(read(t, filepath.Join(n.dir, "logs", "p", name+".log"))) {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // the last line is being written
			}
			fields := bytes.Fields(line)
			if got := string(fields[len(fields)-1]); got != strconv.Itoa(lines) {
				t.Fatalf("line %d of %s is %s", lines, name, got)
			}
			lines++
		}
		return lines
	}
	touch(t, fmt.Sprintf("/proc/%d/root/go", pid))
	was := numbered("writer")
	until("the log stands still", func() bool { return numbered("writer") > was })
	var status *cri.ContainerStatus
	until("the other does not end", func() bool {
		resp, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: n.ids["next"]})
		if err != nil {
			t.Fatal(err)
		}
		status = resp.Status
		return status.State == cri.ContainerState_CONTAINER_EXITED
	})
	if lines := numbered("next"); lines != 300 {
		t.Errorf("process %d has written 300 lines, %d are in its log", pid, lines)
	}
	if kernel.Probe().PidfdInfo && status.ExitCode != 7 {
		t.Errorf("the container exited with %d, %s", status.ExitCode, status.Message)
	}
	if _, err := n.runtime().RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: n.ids["writer"]}); err != nil {
		t.Fatal(err)
	}
	until("the manager keeps what is no more", func() bool { return m.count() == 0 })
}
