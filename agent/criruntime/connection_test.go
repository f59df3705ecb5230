package criruntime_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/internal/fault"
	critest "k8s.io/cri-api/pkg/apis/testing"
)

func TestCounts(t *testing.T) {
	fake := critest.NewFakeRuntimeService()
	counts := criruntime.NewConnection(slog.New(slog.DiscardHandler))
	runtime, images := counts.Runtime(), counts.Images()
	if name := counts.RuntimeName(); name != "" {
		t.Errorf("connected to %s", name)
	}
	if _, err := counts.Connect(t.Context(), fake, critest.NewFakeImageService()); err != nil || counts.RuntimeName() != "fakeRuntime" {
		t.Fatalf("connected to %q, %v", counts.RuntimeName(), err)
	}
	if _, err := runtime.Version(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	fake.InjectError("StopContainer", errors.New("no"))
	if err := runtime.StopContainer(t.Context(), "x", 0); err == nil {
		t.Error("the error is lost")
	}
	if _, err := images.ListImages(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	var got []string
	families, err := counts.Counts.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if !strings.Contains(f.GetName(), "seconds") {
				got = append(got, fmt.Sprintf("%s %s %v", strings.TrimPrefix(f.GetName(), "kubelet_runtime_operations_"), m.GetLabel()[0].GetValue(), m.GetCounter().GetValue()))
			}
		}
	}
	if want := "errors_total list_images 0, errors_total stop_container 1, errors_total version 0, total list_images 1, total stop_container 1, total version 2"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Before the runtime has answered, a call still ends with its context.
func TestBeforeTheFirstAnswer(t *testing.T) {
	c := criruntime.NewConnection(slog.New(slog.DiscardHandler))
	runtime, images := c.Runtime(), c.Images()
	for _, gone := range []error{context.Canceled, context.DeadlineExceeded} {
		ctx, cancel := context.WithCancel(t.Context())
		if gone == context.DeadlineExceeded {
			ctx, cancel = context.WithTimeout(t.Context(), time.Microsecond)
		}
		time.AfterFunc(time.Microsecond, cancel)
		_, err := runtime.ListPodSandbox(ctx, nil)
		_, imagesErr := images.ImageFsInfo(ctx)
		_, _, execErr := runtime.ExecSync(ctx, "x", nil, 0)
		for _, err := range []error{err, imagesErr, execErr, runtime.StopContainer(ctx, "x", 0), runtime.GetContainerEvents(ctx, nil, nil), runtime.Close(ctx), images.Close(ctx)} {
			if !errors.Is(err, fault.Unavailable) || !errors.Is(err, ctx.Err()) {
				t.Errorf("%v: the call ends with %v", gone, err)
			}
		}
	}
	answered := make(chan error)
	go func() {
		_, err := runtime.Version(t.Context(), "")
		answered <- err
	}()
	if _, err := c.Connect(t.Context(), critest.NewFakeRuntimeService(), critest.NewFakeImageService()); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
