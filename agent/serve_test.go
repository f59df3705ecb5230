package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/internal/thread"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A page in a browser on the node has it ask for a name of its own that leads to
// 127.0.0.1: it is told nothing.
func TestReadOnlyPortIsNotForPages(t *testing.T) {
	h := readOnly(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "pods") }))
	for host, want := range map[string]int{
		"127.0.0.1:10255": 200, "127.0.0.1": 200, "127.1.2.3:1": 200, "localhost:10255": 200, "LocalHost": 200, "[::1]:10255": 200, "[::1]": 200,
		"rebind.example:10255": 421, "rebind.example": 421, "127.0.0.1.rebind.example": 421, "192.0.2.1:10255": 421, "": 421, "localhost.example": 421,
	} {
		r := httptest.NewRequest(http.MethodGet, "/pods", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want || (w.Code == 200) != (w.Body.String() == "pods") {
			t.Errorf("Host %q: %d %q, want %d", host, w.Code, w.Body, want)
		}
	}
}

// What cannot be read of one pod's ephemeral containers keeps the agent from nothing, and
// stays.
func TestDamagedEphemeral(t *testing.T) {
	root := t.TempDir()
	for _, uid := range []string{"good", "bad", "dir"} {
		if err := os.MkdirAll(filepath.Join(root, "pods", uid), 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(`{"metadata":{"name":"%s","namespace":"default","uid":"%s"}}`, uid, uid)
		if err := os.WriteFile(filepath.Join(root, "pods", uid, "pod.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "ephemeral/dir.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"good": `[{"name":"shell","image":"i"}]`, "bad": `[{"name":`, "gone": `[]`} {
		if err := os.WriteFile(filepath.Join(root, "ephemeral", name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	files, err := podfiles.Open(podfiles.Options{Root: root, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	wanted := desired.New([]string{manifest.SourceFile})
	d := &debugged{dir: filepath.Join(root, "ephemeral"), wanted: wanted, log: slog.New(slog.NewTextHandler(&log, nil))}
	d.load(files.Accepted())
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "good", Namespace: "default", UID: "good"}}
	changes, _, _ := wanted.Update(source.Update{Source: manifest.SourceFile, Files: []source.File{{Path: "f", Objects: []manifest.Object{pod}}}})
	if len(changes) != 1 || len(changes[0].Pod.Spec.EphemeralContainers) != 1 {
		t.Errorf("wanted %+v", changes)
	}
	for name, there := range map[string]bool{"good": true, "bad": true, "dir": true, "gone": false} {
		_, err := os.Lstat(filepath.Join(root, "ephemeral", name+".json"))
		if (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
		if told := strings.Contains(log.String(), name+".json"); told != (name == "bad" || name == "dir") {
			t.Errorf("%s: told %v: %s", name, told, &log)
		}
	}
}

// A member of the group reaches the agent, and other users of the machine neither
// the socket nor what is beside it.
func TestGroupReachesTheSocket(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it becomes another user")
	}
	const group, user = 61234, 61234
	top, err := os.MkdirTemp("", "crisp-") // t.TempDir is closed to others
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(top, "root")
	unlock, err := lockRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	l, err := listenUnix(SocketOf(root))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := letGroup(group, root, SocketOf(root)); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		gid  int
		want error
	}{
		"member": {group, nil},
		"other":  {group + 1, unix.EACCES},
	} {
		if err := asUser(user, test.gid, func() error {
			c, err := net.Dial("unix", SocketOf(root))
			if err == nil {
				c.Close()
			}
			return err
		}); !errors.Is(err, test.want) {
			t.Errorf("%s: connect is %v, want %v", name, err, test.want)
		}
	}
}

// asUser calls f with the file permissions of a user (setfsuid(2)).
func asUser(uid, gid int, f func() error) error {
	return thread.Run(func() error {
		if err := unix.Setfsgid(gid); err != nil {
			return err
		}
		if err := unix.Setfsuid(uid); err != nil {
			return err
		}
		return f()
	})
}
