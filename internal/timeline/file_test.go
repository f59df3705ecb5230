package timeline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/google/go-cmp/cmp"
)

// A Recorder restores what another one has saved: stages with their parts, waits that go on, and
// actions under way, which have ended.
func TestRestore(t *testing.T) {
	var before, after Recorder
	pod := Pod{UID: "u", Namespace: "default", Name: "web"}
	ctx, log := stage.With(t.Context(), nil)
	open := before.BeginFlat(pod, Stage{Name: "start", Container: "app", Attempt: 1}, log)
	stage.Next(ctx, "create")
	stage.Next(ctx, "start")
	log.Stop()
	open.End("", "")
	before.Wait(pod, []Stage{{Name: "readiness probe", Container: "app", Detail: "404"}})
	before.Begin(pod, Stage{Name: "pull"}, nil)
	list, changes := before.Save("u")
	if changes == 0 || changes != before.Changes("u") || len(list) != 4 {
		t.Fatalf("%d changes, stages %+v", changes, list)
	}

	path := filepath.Join(t.TempDir(), "startup.json")
	seen := time.Now()
	if err := WriteFile(path, Saved{Pod: pod, Seen: seen, Attempt: 1, Stages: list}); err != nil {
		t.Fatal(err)
	}
	saved, err := ReadFile(path)
	if err != nil || saved.Pod != pod || !saved.Seen.Equal(seen) {
		t.Fatalf("read %+v; %v", saved, err)
	}
	after.Restore(saved.Pod, saved.Stages)
	got := after.Of("u")
	want := before.Of("u")
	for i := range want {
		if want[i].Name == "pull" {
			if got[i].End.IsZero() || got[i].Err != cutShort {
				t.Errorf("the action under way is %+v", got[i])
			}
			got[i].End, got[i].Err = time.Time{}, ""
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stages (-before +after):\n%s", diff)
	}
	after.Wait(pod, nil)
	for _, s := range after.Of("u") {
		if s.End.IsZero() {
			t.Errorf("an ended wait goes on: %+v", s)
		}
	}
	after.Restore(saved.Pod, saved.Stages)
	if n := len(after.Of("u")); n != len(want) {
		t.Errorf("restored twice there are %d stages", n)
	}
}

// The file is bounded, whatever the stages contain; a damaged one is an error, and is not read in
// part.
func TestSavedIsBounded(t *testing.T) {
	var list []SavedStage
	for range maxFirst + maxLast {
		s := SavedStage{Stage: Stage{Name: "pull", Detail: strings.Repeat("x", maxText), Err: strings.Repeat("y", maxText)}}
		for range maxParts {
			s.Parts = append(s.Parts, Stage{Name: strings.Repeat("z", 100)})
		}
		list = append(list, s)
	}
	path := filepath.Join(t.TempDir(), "startup.json")
	if err := WriteFile(path, Saved{Stages: list}); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	saved, rerr := ReadFile(path)
	if err != nil || rerr != nil || st.Size() > maxFile || len(saved.Stages) == 0 {
		t.Errorf("%d bytes with %d stages; %v, %v", st.Size(), len(saved.Stages), err, rerr)
	}
	if list[0].Parts == nil {
		t.Error("the caller's stages were changed")
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(path); err == nil {
		t.Error("half a file was read")
	}
}
