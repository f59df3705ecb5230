package timeline

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/crisp-cri/crisp/internal/stage"
)

// A Recorder restores what another one has saved: stages with their parts, waits, which continue,
// and running actions, which have ended.
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

// Whatever happens between two calls of Keep, the file has the content of the Recorder: stages that
// began, ended and were repeated, those of an earlier process, and of very many the first and the
// last. Keep appends; it rewrites a file that has become too long, or that another process has
// replaced.
func TestKeep(t *testing.T) {
	var r Recorder
	pod := Pod{UID: "u", Namespace: "default", Name: "web"}
	path := filepath.Join(t.TempDir(), "startup.json")
	check := func(after string) {
		t.Helper()
		if err := r.Keep("u", path); err != nil {
			t.Fatalf("%s: %v", after, err)
		}
		file, err := ReadFile(path)
		if err != nil || file.Pod != pod {
			t.Fatalf("%s: of %v; %v", after, file.Pod, err)
		}
		var next Recorder
		next.Restore(pod, file.Stages)
		want, got := r.Of("u"), next.Of("u")
		for i := range want {
			if want[i].End.IsZero() && i < len(got) && got[i].Err == cutShort {
				got[i] = want[i]
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-recorder +file):\n%s", after, diff)
		}
	}
	ctx, log := stage.With(t.Context(), nil)
	pull := r.Begin(pod, Stage{Name: "pull"}, log)
	check("a stage began")
	first, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	stage.Next(ctx, "layers")
	r.Begin(pod, Stage{Name: "create", Container: "app"}, nil).End("", "no such image")
	check("another has ended")
	log.Stop()
	pull.End("12 MB", "")
	check("the first has ended")
	for range 3 {
		r.Repeat(pod, Stage{Name: "exec", Container: "app", End: time.Now()})
		check("a probe")
	}
	ctx, log = stage.With(t.Context(), nil)
	flat := r.BeginFlat(pod, Stage{Container: "app"}, log)
	stage.Next(ctx, "volumes")
	stage.Next(ctx, "start")
	check("an action under way")
	log.Stop()
	flat.End("", "")
	check("an action")
	if same, err := os.Stat(path); err != nil || !os.SameFile(first, same) {
		t.Errorf("the file was written anew; %v", err)
	}

	r.Forget("u")
	for i := range 4 * (maxFirst + maxLast) {
		r.Begin(pod, Stage{Name: "start", Attempt: uint32(i), Detail: strings.Repeat("x", 200)}, nil).End("", "")
		if i%5 == 0 {
			check("a restart")
		}
		if st, err := os.Stat(path); err == nil && st.Size() > 2*maxFile+4096 {
			t.Fatalf("the file has %d bytes", st.Size())
		}
	}
	r.Forget("u")
	r.Begin(pod, Stage{Name: "sandbox"}, nil).End("", "")
	check("a pod that was forgotten")
	path = filepath.Join(t.TempDir(), "startup.json")
	check("another sandbox")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.Begin(pod, Stage{Name: "start"}, nil)
	if err := r.Keep("u", path); err == nil {
		t.Error("stages were appended to no file")
	}
	check("an error")
	if err := r.Keep("nobody", path); err != nil {
		t.Error(err)
	}
}

// Calls for one pod may end concurrently: once all have returned, the file has the stages of all.
func TestKeepSideBySide(t *testing.T) {
	var r Recorder
	path := filepath.Join(t.TempDir(), "startup.json")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				r.Begin(Pod{UID: "u"}, Stage{Name: "create", Attempt: uint32(i)}, nil).End("", "")
				if err := r.Keep("u", path); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if s, err := ReadFile(path); err != nil || len(s.Stages) != 40 || slices.ContainsFunc(s.Stages, func(st SavedStage) bool { return st.End.IsZero() }) {
		t.Errorf("%d stages; %v: %+v", len(s.Stages), err, s.Stages)
	}
}

// A part that a full disk has cut off is missing; everything before it is there.
func TestKeptInPart(t *testing.T) {
	var r Recorder
	path := filepath.Join(t.TempDir(), "startup.json")
	for _, name := range []string{"sandbox", "create"} {
		r.Begin(Pod{UID: "u"}, Stage{Name: name}, nil).End("", "")
		if err := r.Keep("u", path); err != nil {
			t.Fatal(err)
		}
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, st.Size()-5); err != nil {
		t.Fatal(err)
	}
	if s, err := ReadFile(path); err != nil || len(s.Stages) != 1 || s.Stages[0].Name != "sandbox" {
		t.Errorf("read %+v; %v", s, err)
	}
}

// About 20 containers are created and started, and the pod's timeline is saved after each call.
func BenchmarkKeep(b *testing.B) {
	pod := Pod{UID: "u", Namespace: "default", Name: "web"}
	path := filepath.Join(b.TempDir(), "startup.json")
	for b.Loop() {
		var r Recorder
		for i := range 40 {
			ctx, log := stage.With(b.Context(), nil)
			open := r.Begin(pod, Stage{Name: "create", Container: "app", Attempt: uint32(i)}, log)
			for _, part := range []string{"rootfs", "spec", "record", "plugins"} {
				stage.Next(ctx, part)
			}
			log.Stop()
			open.End("", "")
			if err := r.Keep("u", path); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// The size of the file is bounded, whatever the stages contain. A damaged file is an error, and is
// not read in part.
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
