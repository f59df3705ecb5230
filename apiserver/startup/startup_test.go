package startup_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func podOf(uid string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: types.UID(uid)}}
}

// status returns the status of a pod whose container runs and is or is not ready.
func status(ready bool) *v1.PodStatus {
	s := &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "app", Started: &[]bool{true}[0], Ready: ready, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}}
	if ready {
		s.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	}
	return s
}

// The stages cover the whole start of a pod, from when it was seen until it was ready.
func TestWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k startup.Keeper
		pod := podOf("u")
		k.Seen(pod)
		k.Seen(pod)
		time.Sleep(time.Second)
		act := func(a podsync.Action, err error, stages ...string) {
			ctx, interrupt, done := k.Act(context.Background(), t.Context(), pod, a)
			for i, name := range stages {
				if i%2 == 1 { // interrupted stages count too
					stage.Next(interrupt, name)
				} else {
					stage.Next(ctx, name)
				}
				time.Sleep(time.Second)
			}
			done(err)
		}
		look := func(s *v1.PodStatus, failures map[string]podsync.Failure) {
			done := k.Observe(pod)
			time.Sleep(time.Second)
			done()
			k.Status(pod, s, failures)
		}
		look(&v1.PodStatus{}, nil)
		act(podsync.Action{Verb: podsync.RunSandbox}, errors.New("no address"), "volumes", "sandbox")
		look(&v1.PodStatus{}, map[string]podsync.Failure{podsync.SandboxSubject: {Reason: "FailedCreatePodSandBox", Message: "no address"}})
		time.Sleep(time.Second)
		act(podsync.Action{Verb: podsync.RunSandbox, Attempt: 1}, nil, "sandbox")
		look(&v1.PodStatus{}, nil)
		act(podsync.Action{Verb: podsync.StopSandbox}, nil, "not told")
		act(podsync.Action{Verb: podsync.StartContainer, Name: "app"}, nil, "image", "pull", "start")
		look(status(false), nil)
		time.Sleep(3 * time.Second)
		k.Status(pod, status(true), nil)
		ready := time.Now()
		time.Sleep(time.Hour)
		look(status(true), nil)

		r, ok := k.Of("u")
		if !ok || !r.Ready.Equal(ready) || r.Pod.String() != "default/web" {
			t.Fatalf("%v, %+v", ok, r)
		}
		var text []string
		for _, s := range r.Stages {
			text = append(text, fmt.Sprintf("%s %v %s", s.Label(), s.Took(ready), s.Err))
		}
		want := []string{
			"queue 1s ", "observe 1s ", "volumes 1s ", "sandbox 1s no address", "observe 1s ", "back-off 1s ", "sandbox 1s ", "observe 1s ",
			"image app 1s ", "pull app 1s ", "start app 1s ", "observe 1s ", "readiness probe app 3s ",
		}
		if d := cmp.Diff(want, text); d != "" {
			t.Error(d)
		}
		// One second was spent in the stop, which no stage covers.
		if c := r.Covered(time.Now()); c < 0.93 || c > 0.95 {
			t.Errorf("%v of the time is covered", c)
		}
		if all := k.All(); len(all) != 1 || all[0].Pod != r.Pod {
			t.Errorf("all: %v", all)
		}
		k.Keep(only("u"))
		if _, ok := k.Of("u"); !ok {
			t.Error("a pod that is there is forgotten")
		}
		k.Keep(only())
		if _, ok := k.Of("u"); ok || len(k.All()) != 0 {
			t.Error("a pod that is gone is not forgotten")
		}
	})
}

// Running stages are reported as running. A pod that was not seen start, or does not exist, has no
// report.
func TestGoingOn(t *testing.T) {
	var k startup.Keeper
	pod := podOf("u")
	k.Seen(pod)
	ctx, _, done := k.Act(t.Context(), t.Context(), pod, podsync.Action{Verb: podsync.StartContainer, Name: "app"})
	stage.Next(ctx, "pull")
	if r, _ := k.Of("u"); !r.Ready.IsZero() || r.Stages[len(r.Stages)-1].Label() != "pull app" || !r.Stages[len(r.Stages)-1].End.IsZero() {
		t.Errorf("while it is pulled: %+v", r)
	}
	done(nil)
	for _, other := range []*v1.Pod{nil, podOf("v")} {
		k.Observe(other)()
		k.Status(other, status(true), nil)
		ctx, interrupt, done := k.Act(t.Context(), t.Context(), other, podsync.Action{Verb: podsync.RunSandbox})
		stage.Next(ctx, "sandbox")
		stage.Next(interrupt, "sandbox")
		done(nil)
	}
	if all := k.All(); len(all) != 1 {
		t.Errorf("known: %v", all)
	}
}

// A pod that cannot start is observed for days, while other pods come and go.
func TestBounds(t *testing.T) {
	var k startup.Keeper
	pod := podOf("u")
	k.Seen(pod)
	for range 1000 {
		k.Observe(pod)()
		k.Status(pod, &v1.PodStatus{}, nil)
	}
	if r, _ := k.Of("u"); len(r.Stages) > 50 {
		t.Errorf("%d stages are kept", len(r.Stages))
	}
	for i := range 2000 {
		k.Seen(podOf(fmt.Sprint(i)))
	}
	if all := k.All(); len(all) > 1000 || all[len(all)-1].Pod.UID != "1999" {
		t.Errorf("%d pods are kept", len(all))
	}
}

// only returns a function that returns these pods.
func only(uids ...types.UID) func() map[types.UID]bool {
	there := map[types.UID]bool{}
	for _, uid := range uids {
		there[uid] = true
	}
	return func() map[types.UID]bool { return there }
}

// A pod that is first seen while the list of pods is made is not in it, and keeps its timeline.
func TestSeenMeanwhile(t *testing.T) {
	var k startup.Keeper
	k.Keep(func() map[types.UID]bool {
		k.Seen(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u"}})
		return nil
	})
	if _, ok := k.Of("u"); !ok {
		t.Error("its timeline is gone")
	}
}
