package source

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podfiles"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An unreadable record of a pod's ephemeral containers does not prevent the agent from starting,
// and stays.
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
	wanted := NewManager([]string{manifest.SourceFile}, nil)
	OpenEphemeral(filepath.Join(root, "ephemeral"), files.Accepted(), wanted, slog.New(slog.NewTextHandler(&log, nil)))
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "good", Namespace: "default", UID: "good"}}
	changes, _, _ := wanted.Update(Update{Source: manifest.SourceFile, Files: []File{{Path: "f", Objects: []manifest.Object{pod}}}})
	if len(changes) != 1 || len(changes[0].Pod.Spec.EphemeralContainers) != 1 {
		t.Errorf("wanted %+v", changes)
	}
	for name, there := range map[string]bool{"good": true, "bad": true, "dir": true, "gone": false} {
		_, err := os.Lstat(filepath.Join(root, "ephemeral", name+".json"))
		if (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
		if logged := strings.Contains(log.String(), name+".json"); logged != (name == "bad" || name == "dir") {
			t.Errorf("%s: logged %v: %s", name, logged, &log)
		}
	}
}

// A debug container lives as long as its pod: it survives the agent while the pod is wanted. A
// later pod with the same UID, such as one whose manifest returns, does not have it.
func TestGoneWithItsPod(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ephemeral")
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u"}}
	pod.Spec.Containers = []v1.Container{{Name: "app", Image: "i"}}
	shell := v1.EphemeralContainer{}
	shell.Name, shell.Image = "shell", "i"
	log := slog.New(slog.DiscardHandler)
	begin := func() (*EphemeralStore, int) {
		wanted := NewManager([]string{manifest.SourceFile}, nil)
		s := OpenEphemeral(dir, []*v1.Pod{pod}, wanted, log)
		changes, _, _ := wanted.Update(Update{Source: manifest.SourceFile, Files: []File{{Path: "f", Objects: []manifest.Object{pod}}}})
		return s, len(changes[0].Pod.Spec.EphemeralContainers)
	}
	s, _ := begin()
	if err := s.Set(pod, []v1.EphemeralContainer{shell}); err != nil {
		t.Fatal(err)
	}
	s.Keep(map[types.UID]bool{"u": true})
	s, n := begin()
	if n != 1 {
		t.Errorf("the next agent knows %d debug containers, want 1", n)
	}
	s.Keep(map[types.UID]bool{"other": true})
	if _, n := begin(); n != 0 {
		t.Errorf("a later pod has %d debug containers, want none", n)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%d files stay, %v", len(left), err)
	}
}
