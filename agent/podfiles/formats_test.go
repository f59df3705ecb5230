package podfiles

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/crisp-cri/crisp/test/formats"
)

var began = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

func limits() v1.ResourceRequirements {
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m"), v1.ResourceMemory: resource.MustParse("64Mi")}
	return v1.ResourceRequirements{Limits: list, Requests: list}
}

// The agent's files of a pod, and how the next agent reads them.
func TestFormats(t *testing.T) {
	p := pod("u1", "app")
	p.Labels, p.Annotations = map[string]string{"app": "web"}, map[string]string{"kubernetes.io/config.source": "file"}
	p.CreationTimestamp = began
	p.Spec.RestartPolicy, p.Spec.NodeName = v1.RestartPolicyAlways, "node"
	p.Spec.Containers[0].Image, p.Spec.Containers[0].Resources = "registry/web:1", limits()
	formats.CheckValue(t, "pod", *p, func(data []byte, p *v1.Pod) error {
		s := kept(t, "pod.json", data, slog.New(slog.DiscardHandler))
		if read := s.Pod("u1"); read != nil {
			*p = *read
			return nil
		}
		return errors.New("the pod is not known")
	})

	status := v1.PodStatus{
		Phase: v1.PodRunning, PodIP: "10.1.0.2", PodIPs: []v1.PodIP{{IP: "10.1.0.2"}}, StartTime: &began, QOSClass: v1.PodQOSGuaranteed,
		Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: began}},
		ContainerStatuses: []v1.ContainerStatus{{
			Name: "app", Ready: true, RestartCount: 2, Image: "registry/web:1", ImageID: "sha256:1", ContainerID: "crisp://c1",
			State:                v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: began}},
			LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", FinishedAt: began}},
		}},
	}
	formats.CheckValue(t, "status", status, func(data []byte, status *v1.PodStatus) error {
		read := kept(t, "status.json", data, slog.New(slog.DiscardHandler)).LoadStatus(pod("u1"))
		if read == nil {
			return errors.New("the status is not known")
		}
		*status = *read
		return nil
	})

	actual := map[string]v1.ResourceRequirements{"app": limits()}
	formats.CheckValue(t, "actual", actual, func(data []byte, actual *map[string]v1.ResourceRequirements) error {
		var known map[string]json.RawMessage
		if err := json.Unmarshal(data, &known); err != nil {
			return err
		}
		delete(known, "OfALaterRelease") // in this file, a container of that name
		data, err := json.Marshal(known)
		if err != nil {
			return err
		}
		*actual = kept(t, "actual.json", data, slog.New(slog.DiscardHandler)).Actual("u1")
		return nil
	})

	formats.Check[agentRecord](t, "agent", nil)
}

// kept opens a store in which a file of the pod u1 holds data.
func kept(t *testing.T, file string, data []byte, log *slog.Logger) *Store {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "pods", "u1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Options{Root: root, LogDir: filepath.Join(root, "logs"), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// An unreadable file stays unchanged and is logged, and the pod is not mistaken for another.
func TestUnreadableFilesStay(t *testing.T) {
	for name, text := range map[string]string{
		"cut short":    `{"metadata":{"name":"web","namespace":"default","ui`,
		"empty":        "",
		"another's":    `{"metadata":{"name":"web","namespace":"default","uid":"u2"}}`,
		"another form": `{"version":9,"pod":"0xff"}`,
		"other types":  `{"metadata":{"name":["web"],"namespace":"default","uid":"u1"},"phase":7,"app":"none"}`,
	} {
		var log bytes.Buffer
		for file, read := range map[string]func(*Store){
			"pod.json": func(s *Store) {
				if len(s.Accepted()) != 0 {
					t.Errorf("%s: %+v is a pod", name, s.Accepted()[0])
				}
			},
			"status.json": func(s *Store) {
				if status := s.LoadStatus(pod("u1")); status != nil && status.Phase != "" {
					t.Errorf("%s: the status is %+v", name, status)
				}
			},
			"actual.json": func(s *Store) {
				if got := s.Actual("u1")["app"]; len(got.Limits) != 0 {
					t.Errorf("%s: the resources are %+v", name, got)
				}
			},
		} {
			log.Reset()
			s := kept(t, file, []byte(text), slog.New(slog.NewTextHandler(&log, nil)))
			read(s)
			if data, err := os.ReadFile(filepath.Join(s.Dir("u1"), file)); err != nil || string(data) != text {
				t.Errorf("%s: %s is %q now (%v)", name, file, data, err)
			}
			if !strings.Contains(log.String(), "u1") {
				t.Errorf("%s: nothing is logged of %s: %s", name, file, &log)
			}
		}
	}
}
