package store_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/apiserver/store"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
)

// Who puts what has been read, with all defaults in it, replaces no pods and starts no Job over,
// even if something else is changed. A change of the template does.
func TestPutOfWhatWasRead(t *testing.T) {
	s := open(t, t.TempDir())
	const template = `template: {metadata: {labels: {a: b}}, spec: {restartPolicy: %, containers: [{name: c, image: "i:1"}]}}`
	for kind, text := range map[string]string{
		"Deployment":  `{apiVersion: apps/v1, kind: Deployment, metadata: {name: w}, spec: {selector: {matchLabels: {a: b}}, ` + strings.ReplaceAll(template, "%", "Always") + `}}`,
		"DaemonSet":   `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: w}, spec: {selector: {matchLabels: {a: b}}, ` + strings.ReplaceAll(template, "%", "Always") + `}}`,
		"StatefulSet": `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: w}, spec: {volumeClaimTemplates: [{metadata: {name: d}, spec: {accessModes: [ReadWriteOnce]}}], selector: {matchLabels: {a: b}}, ` + strings.ReplaceAll(template, "%", "Always") + `}}`,
		"Job":         `{apiVersion: batch/v1, kind: Job, metadata: {name: w}, spec: {` + strings.ReplaceAll(template, "%", "Never") + `}}`,
	} {
		uid := put(t, s, text, store.PutOptions{}, store.Created)
		revision := func() (hash string, read []byte) {
			o, err := s.Get(strings.ToLower(kind) + " default/w")
			if err != nil || o.GetUID() != uid {
				t.Fatalf("%s: %v", kind, err)
			}
			switch o := o.(type) {
			case *appsv1.Deployment:
				hash = o.Spec.Template.Annotations[manifest.AnnotationHash]
			case *appsv1.StatefulSet:
				hash = o.Spec.Template.Annotations[manifest.AnnotationHash]
			case *appsv1.DaemonSet:
				hash = o.Spec.Template.Annotations[manifest.AnnotationHash]
			case *batchv1.Job:
				hash = o.Spec.Template.Annotations[manifest.AnnotationHash]
			}
			if read, err = json.Marshal(o); err != nil || hash == "" {
				t.Fatalf("%s: %q, %v", kind, hash, err)
			}
			return hash, read
		}
		before, read := revision()
		for range 2 {
			if _, _, _, err := s.Put(read, store.PutOptions{Update: true}); err != nil {
				t.Fatal(err)
			}
			var now string
			if now, read = revision(); now != before {
				t.Errorf("%s: what was read is another revision", kind)
			}
		}
		_, read = revision()
		if _, _, _, err := s.Put([]byte(strings.Replace(string(read), `"name":"w"`, `"name":"w","labels":{"x":"y"}`, 1)), store.PutOptions{Update: true}); err != nil {
			t.Fatal(err)
		}
		now, read := revision()
		if now != before {
			t.Errorf("%s: a label is another revision", kind)
		}
		if _, _, _, err := s.Put([]byte(strings.Replace(string(read), "i:1", "i:2", 1)), store.PutOptions{Update: true}); err != nil {
			t.Fatal(err)
		}
		if now, _ := revision(); now == before {
			t.Errorf("%s: another image is the same revision", kind)
		}
	}
}

// Who applies a file again after a restart restarts nothing; an update without the restart does, as
// "kubectl replace" does on a cluster.
func TestApplyKeepsRestart(t *testing.T) {
	s := open(t, t.TempDir())
	const text = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: w}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}%s}, spec: {containers: [{name: c, image: "i:1"}]}}}}`
	plain, restarted := strings.Replace(text, "%s", "", 1), strings.Replace(text, "%s", `, annotations: {kubectl.kubernetes.io/restartedAt: "2026-01-02T03:04:05Z"}`, 1)
	put(t, s, plain, store.PutOptions{}, store.Created)
	put(t, s, restarted, store.PutOptions{Update: true}, store.Configured)
	put(t, s, plain, store.PutOptions{}, store.Unchanged)
	put(t, s, strings.Replace(plain, "name: w", "name: w, labels: {x: one}", 1), store.PutOptions{}, store.Configured)
	o, err := s.Get("deployment default/w")
	if err != nil {
		t.Fatal(err)
	}
	if at := o.(*appsv1.Deployment).Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"]; at == "" || o.GetLabels()["x"] != "one" {
		t.Errorf("restarted at %q, with labels %v", at, o.GetLabels())
	}
	put(t, s, plain, store.PutOptions{Update: true}, store.Configured)
	if o, err = s.Get("deployment default/w"); err != nil || len(o.(*appsv1.Deployment).Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"]) > 0 {
		t.Errorf("an update keeps the restart: %v", err)
	}
}
