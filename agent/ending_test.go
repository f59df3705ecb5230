package agent

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/agent/autoupdate"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// noNode is an unknown node.
type noNode struct{}

func (noNode) IPs() []string       { return nil }
func (noNode) RuntimeName() string { return "fake" }

// lateFiles calls before just before a status is stored.
type lateFiles struct {
	*podfiles.Store
	before func()
}

func (f lateFiles) SaveStatus(pod *v1.Pod, s *v1.PodStatus) error {
	f.before()
	return f.Store.SaveStatus(pod, s)
}

// If a pod becomes unwanted just before its worker makes its first file, its end is still recorded.
// Otherwise the next agent would continue the pod if it was wanted again.
func TestEndBeforeTheFirstFile(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	files, err := podfiles.Open(podfiles.Options{Root: t.TempDir(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	events, err := status.OpenEvents(t.TempDir(), "n1", status.DefaultMostEvents, log)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	a := &Agent{o: Options{Log: log}, observer: unobserved{}, updates: autoupdate.Open(filepath.Join(t.TempDir(), "updates.json"), 0, log), Files: files, Events: events, results: &probe.Results{}, Wanted: source.NewManager([]string{manifest.SourceFile}, nil)}
	a.Probes = probe.New(t.Context(), probe.Options{})
	wants := func(objects ...manifest.Object) {
		a.Wanted.Update(source.Update{Source: manifest.SourceFile, Files: []source.File{{Path: "f", Objects: objects}}})
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u"}}
	late := lateFiles{files, func() {}}
	report := func() {
		a.Statuses = status.NewStore(noNode{}, late, a.results, log)
		backend{a: a}.Report(pod, podsync.Have{})
	}
	wants(pod)
	report()
	if files.Pod("u") == nil || files.Ending("u") {
		t.Fatalf("a wanted pod: kept %v, ending %v", files.Pod("u"), files.Ending("u"))
	}
	if err := files.Remove("u"); err != nil {
		t.Fatal(err)
	}
	late.before = func() {
		wants()
		a.recordEndings()
	}
	report()
	if !files.Ending("u") {
		t.Error("its end is not recorded")
	}
}
