package podfiles

import (
	"errors"
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

// pod returns a pod in namespace "default".
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

// A container may make the file that is mounted in it as long as a file can be.
func TestLongResolvConf(t *testing.T) {
	s := open(t, t.TempDir())
	path, text := s.ResolvFile("u"), "nameserver 192.0.2.1\n"
	write := func() error { return s.WriteResolvConf("u", text, false) }
	if err := errors.Join(os.MkdirAll(s.Dir("u"), 0o755), write(), os.Truncate(path, 1<<42), write(), os.Chtimes(path, ours, ours), write()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != int64(len(text)) {
		t.Errorf("it has %d bytes, want %d: %v", info.Size(), len(text), err)
	}
}

// The next agent knows which pods were being ended, and does not reuse their statuses if they are
// wanted again.
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
	for range 2 { // as in repeated rounds
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

// A container that crashes repeatedly keeps only the logs of its last instances, including rotated
// ones. Its attempts are still counted, and nothing else in the directory is removed.
func TestPruneLogs(t *testing.T) {
	s := open(t, t.TempDir())
	p := pod("a", "c", "d")
	if err := s.Accept(p); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"c/8.log", "c/9.log", "c/9.log.20261101-120000.gz", "c/10.log", "c/10.log.20261101-120000", "c/11.log", "c/notes", "d/1.log"} {
		path := filepath.Join(s.LogDir(p), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		most int
		want []string
	}{
		{2, []string{"c/10.log", "c/10.log.20261101-120000", "c/11.log", "c/notes", "d/1.log"}},
		{2, []string{"c/10.log", "c/10.log.20261101-120000", "c/11.log", "c/notes", "d/1.log"}},
		{1, []string{"c/11.log", "c/notes", "d/1.log"}},
	} {
		if err := s.PruneLogs(p.UID, "c", step.most); err != nil {
			t.Fatal(err)
		}
		left, err := filepath.Glob(filepath.Join(s.LogDir(p), "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range left {
			left[i] = strings.TrimPrefix(left[i], s.LogDir(p)+"/")
		}
		if !slices.Equal(left, step.want) {
			t.Errorf("%d runs: %q stay, want %q", step.most, left, step.want)
		}
	}
	if got := s.Attempts(p, podsync.Have{}); got["c"] != 12 || got["d"] != 2 {
		t.Errorf("attempts %v", got)
	}
	if err := s.PruneLogs(p.UID, "unknown", 1); err != nil {
		t.Error(err)
	}
	if err := s.PruneLogs("unknown", "c", 1); err != nil {
		t.Error(err)
	}
}

// A damaged file that is valid JSON counts as an empty one.
func TestNull(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	p := pod("a", "c")
	if err := s.SaveStatus(p, &v1.PodStatus{Phase: v1.PodRunning}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{actualFile, statusFile} {
		if err := os.WriteFile(filepath.Join(s.Dir("a"), name), []byte("null"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.LoadStatus(p); got != nil {
		t.Errorf("the status %+v", got)
	}
	if err := s.SetActual("a", "c", v1.ResourceRequirements{}); err != nil || len(s.Actual("a")) != 1 {
		t.Errorf("%v, %v", s.Actual("a"), err)
	}
	if err := RecordAgent(root, "unix:///x", "node"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Dir("a"), podFile), []byte("null"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list := Waiting(root, "unix:///x", nil); len(list) > 0 {
		t.Errorf("%+v waits", list)
	}
}
