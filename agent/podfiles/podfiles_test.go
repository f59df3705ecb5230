package podfiles

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pod returns one in namespace "default".
func pod(uid string, containers ...string) *v1.Pod {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = "default", "web-"+uid, types.UID(uid)
	for _, name := range containers {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name})
	}
	return p
}

func open(t *testing.T, root string) *Store {
	t.Helper()
	s, err := Open(Options{Root: root, LogDir: filepath.Join(root, "logs"), LogLinks: filepath.Join(root, "links"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The next agent knows which pods were being ended, and does not use their statuses if they
// are wanted again.
func TestEndIsNoted(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	a, b := pod("a"), pod("b")
	b.Name = a.Name
	for _, p := range []*v1.Pod{a, b} {
		if err := s.SaveStatus(p, &v1.PodStatus{Phase: v1.PodFailed}); err != nil {
			t.Fatal(err)
		}
	}
	have := podsync.Have{Files: s.Of(podsync.KeyOf(a))}
	for range 2 { // as in each round
		if got := s.MarkEnding(b, have); !slices.Equal(got, []string{string(a.UID)}) {
			t.Errorf("%v end, want %s", got, a.UID)
		}
	}
	next := open(t, root)
	for _, s := range []*Store{s, next} {
		if !s.Ending(a.UID) || s.LoadStatus(a) != nil {
			t.Error("the pod that is not wanted goes on")
		}
		if s.Ending(b.UID) || s.LoadStatus(b) == nil {
			t.Error("the pod that is wanted is forgotten")
		}
	}
	if err := next.Remove(a.UID); err != nil {
		t.Fatal(err)
	}
	if next.Ending(a.UID) {
		t.Error("the pod that has ended does not end")
	}
}

// A log shipper finds the log of each container by its pod's name, but not those of removed
// containers.
func TestLogLinks(t *testing.T) {
	p := pod("1")
	s := open(t, t.TempDir())
	log := filepath.Join(s.LogDir(p), "a", "0.log")
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.LinkLog(p, "a", "1234", log); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(s.o.LogLinks, "web-1_default_a-1234.log")
	if data, err := os.ReadFile(link); err != nil || string(data) != "hello" {
		t.Errorf("by its link: %q, %v", data, err)
	}
	if err := s.UnlinkLog("1234"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(link); !os.IsNotExist(err) {
		t.Errorf("the link is left: %v", err)
	}
	p.Name = strings.Repeat("n", 253)
	if name := filepath.Base(s.logLink(p, "a", "1234")); len(name) != 255 {
		t.Errorf("a name of %d bytes", len(name))
	}
}
