package status_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/test/formats"
)

// TestFormats reads lines of events.jsonl.
func TestFormats(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	e := v1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Name: "web.1", Namespace: "default", CreationTimestamp: at},
		InvolvedObject: status.ContainerRef(podRef(), "app"),
		Type:           v1.EventTypeWarning, Reason: "BackOff", Message: "m", Source: v1.EventSource{Component: "crisp", Host: "n1"},
		FirstTimestamp: at, LastTimestamp: at, Count: 2,
	}
	formats.CheckValue(t, "event", e, func(data []byte, e *v1.Event) error {
		var line bytes.Buffer
		if err := json.Compact(&line, data); err != nil {
			return err
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "events.jsonl"), append(line.Bytes(), '\n'), 0o600); err != nil {
			return err
		}
		all := open(t, dir, 10).List()
		if len(all) != 1 {
			return fmt.Errorf("there are %d events", len(all))
		}
		*e = *all[0]
		return nil
	})
}
