package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod that is evicted again and again waits longer each time; one that ran for long in between
// does not.
func TestEvictedPodsBackOff(t *testing.T) {
	e, now := &evicted{}, time.Now()
	for i, test := range []struct{ ran, pause time.Duration }{
		{0, 10 * time.Second}, {time.Second, 20 * time.Second}, {9 * time.Minute, 40 * time.Second}, {10 * time.Minute, 10 * time.Second},
	} {
		now = now.Add(test.ran)
		if e.backedOff(now) || e.backedOff(now.Add(test.pause-1)) {
			t.Errorf("%d: it has backed off before %v", i, test.pause)
		}
		if now = now.Add(test.pause); !e.backedOff(now) {
			t.Errorf("%d: it has not backed off after %v", i, test.pause)
		}
		e.due, e.began = time.Time{}, now
	}
}

// An evicted pod that starts over is at no moment a new one for the next agent, which would take its
// dead containers for the new pod's: its saved status stays beside the record of its end.
func TestEvictedPodStartsOver(t *testing.T) {
	root, log := t.TempDir(), slog.New(slog.DiscardHandler)
	open := func() *podfiles.Store {
		files, err := podfiles.Open(podfiles.Options{Root: root, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	files := open()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u"}}
	a := &Agent{o: Options{Log: log}, Files: files, Statuses: status.NewStore(noNode{}, files, &probe.Results{}, log)}
	a.Statuses.Report(pod, podsync.Have{Verdict: &podsync.Verdict{Reason: podsync.EvictedReason}})
	if s := open().LoadStatus(pod); s == nil || s.Reason != podsync.EvictedReason {
		t.Fatalf("before: %v", s)
	}
	a.startOver(pod)
	if s := a.Statuses.Last(pod); s != nil {
		t.Errorf("it still has the status %v", s)
	}
	if next := open(); !next.Ending("u") || next.LoadStatus(pod) != nil {
		t.Errorf("the next agent finds ending %v, %v", next.Ending("u"), next.LoadStatus(pod))
	}
	// What an agent that is killed before it has recorded the end leaves.
	if err := os.Remove(filepath.Join(files.Dir("u"), "ending")); err != nil {
		t.Fatal(err)
	}
	if s := open().LoadStatus(pod); s == nil || s.Reason != podsync.EvictedReason {
		t.Errorf("after a kill: %v", s)
	}
}
