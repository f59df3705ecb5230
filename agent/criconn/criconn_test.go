package criconn_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/criconn"
	critest "k8s.io/cri-api/pkg/apis/testing"
)

func TestCounts(t *testing.T) {
	fake := critest.NewFakeRuntimeService()
	counts := criconn.New(slog.New(slog.DiscardHandler))
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
	counts.Write(func(name, _, _ string, labels map[string]string, value float64) {
		if !strings.Contains(name, "seconds") && value > 0 {
			got = append(got, fmt.Sprintf("%s %s %v", strings.TrimPrefix(name, "kubelet_runtime_operations_"), labels["operation_type"], value))
		}
	})
	if want := "total list_images 1, total stop_container 1, errors_total stop_container 1, total version 2"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
