package sdnotify_test

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/sdnotify"
)

// The manager gets a descriptor with its name, and the request not to close it when its other end
// is closed; then the request to forget it.
func TestStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	t.Setenv("NOTIFY_SOCKET", path)
	m, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := sdnotify.NewStore()
	if err := s.Keep("c1.o", w); err != nil {
		t.Fatal(err)
	}
	w.Close()
	data, oob := make([]byte, 1024), make([]byte, 256)
	n, o, _, _, err := m.ReadMsgUnix(data, oob)
	if want := "FDSTORE=1\nFDPOLL=0\nFDNAME=c1.o"; err != nil || string(data[:n]) != want {
		t.Fatalf("the manager gets %q, %v", data[:n], err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:o])
	if err != nil || len(messages) != 1 {
		t.Fatalf("the control messages are %v, %v", messages, err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("the descriptors are %v, %v", fds, err)
	}
	kept := os.NewFile(uintptr(fds[0]), "kept")
	io.WriteString(kept, "still open")
	kept.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != "still open" {
		t.Errorf("the stored descriptor writes %q, %v", got, err)
	}
	if err := s.Forget("c1.o"); err != nil {
		t.Fatal(err)
	}
	if n, _, _, _, err = m.ReadMsgUnix(data, oob); err != nil || string(data[:n]) != "FDSTOREREMOVE=1\nFDNAME=c1.o" {
		t.Errorf("then the manager gets %q, %v", data[:n], err)
	}
	m.Close()
	if err := s.Keep("c1.o", r); err == nil {
		t.Error("Keep without a listener returned no error")
	}
}

// keptEnv makes the test binary the daemon of TestKept.
const keptEnv = "SDNOTIFY_TEST_KEPT"

// A daemon takes over its descriptors by name, and does not pass the variables to children. It
// closes descriptors without a name.
func TestKept(t *testing.T) {
	if os.Getenv(keptEnv) != "" {
		kept, err := sdnotify.Kept()
		var said []string
		for _, name := range []string{"c1.o", "c2.p"} {
			if fd, ok := kept[name]; ok {
				text := make([]byte, 16)
				n, _ := unix.Read(fd, text)
				flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
				if flags&unix.FD_CLOEXEC == 0 {
					said = append(said, "inherited")
				}
				said = append(said, name+"="+string(text[:n]))
			}
		}
		for _, left := range os.Environ() {
			if strings.HasPrefix(left, "LISTEN_") {
				said = append(said, left)
			}
		}
		if err != nil {
			said = append(said, "error")
		}
		_, err = unix.FcntlInt(4, unix.F_GETFD, 0)
		if err == nil && len(kept) == 0 && len(said) > 0 {
			said = append(said, "left open")
		}
		os.Stdout.WriteString("<" + strings.Join(said, " ") + ">")
		os.Exit(0)
	}
	for _, tt := range []struct{ env, want string }{
		{"LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=c1.o:c2.p", "<c1.o=first c2.p=second>"},
		{"LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=c1.o:c1.o", "<c1.o=first>"},
		{"LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=c1.o", "<error>"},
		{"LISTEN_PID=$$ LISTEN_FDS=x LISTEN_FDNAMES=c1.o", "<error left open>"}, // their number is unknown
		{"LISTEN_PID=$$ LISTEN_FDS=0 LISTEN_FDNAMES=", "<>"},
		{"LISTEN_PID=1 LISTEN_FDS=2 LISTEN_FDNAMES=c1.o:c2.p", "<>"}, // of another process
		{"LISTEN_FDNAMES=", "<>"},
	} {
		cmd := exec.Command("/bin/sh", "-c", tt.env+` exec "$0" -test.run='^TestKept$'`, os.Args[0])
		cmd.Env = append(os.Environ(), keptEnv+"=1")
		for _, text := range []string{"first", "second"} {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(w, text)
			w.Close()
			defer r.Close()
			cmd.ExtraFiles = append(cmd.ExtraFiles, r)
		}
		out, err := cmd.Output()
		if err != nil || string(out) != tt.want {
			t.Errorf("with %s: %s, %v, want %s", tt.env, out, err, tt.want)
		}
	}
}
