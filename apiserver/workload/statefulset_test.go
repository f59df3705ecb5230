package workload_test

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/crisp-cri/crisp/agent/manifest"
)

func statefulSet(t *testing.T, image, more string) *appsv1.StatefulSet {
	return read(t, fmt.Sprintf(`apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: dbs
  replicas: 3
  selector: {matchLabels: {app: db}}%s
  volumeClaimTemplates:
  - {metadata: {name: data}, spec: {accessModes: [ReadWriteOnce]}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: a, image: "i:%s", volumeMounts: [{name: data, mountPath: /d}]}]}
`, more, image)).(*appsv1.StatefulSet)
}

// Pods of a StatefulSet begin in the order of their numbers, keep names, host names and claims, and
// are updated one after the other, from the last to the first, whatever becomes of them.
func TestStatefulSet(t *testing.T) {
	w := &world{t: t, object: statefulSet(t, "1", "\n  minReadySeconds: 5"), now: time.Unix(1000, 0)}
	w.expect("at first", "db-0:1")
	w.expect("db-0 is not ready", "db-0:1")
	w.ready("db-0")
	w.expect("db-0 is not available yet", "db-0:1")
	if want := w.now.Add(5 * time.Second); !w.plan.Again.Equal(want) {
		t.Errorf("planned again at %v, want %v", w.plan.Again, want)
	}
	w.now = w.now.Add(5 * time.Second)
	w.expect("db-0 is available", "db-0:1 db-1:1")
	w.ready("db-1")
	w.now = w.now.Add(5 * time.Second)
	w.expect("db-1 is", "db-0:1 db-1:1 db-2:1")
	p := w.plan.Pods[1]
	if v := p.Spec.Volumes[0]; p.Spec.Hostname != "db-1" || p.Spec.Subdomain != "dbs" || v.Name != "data" || v.PersistentVolumeClaim.ClaimName != "data-db-1" ||
		p.Labels[appsv1.StatefulSetPodNameLabel] != "db-1" || p.Labels[appsv1.PodIndexLabel] != "1" {
		t.Errorf("db-1 is %+v %+v", p.ObjectMeta, p.Spec)
	}
	w.ready("db-2")
	w.now = w.now.Add(5 * time.Second)
	w.expect("all are", "db-0:1 db-1:1 db-2:1")
	if s := w.plan.Status.(*appsv1.StatefulSet).Status; s.Replicas != 3 || s.AvailableReplicas != 3 || s.UpdatedReplicas != 3 || s.CurrentRevision != s.UpdateRevision {
		t.Errorf("status %+v", s)
	}
	w.object = statefulSet(t, "2", "\n  minReadySeconds: 5")
	w.expect("an update", "db-0:1 db-1:1 db-2:2")
	if s := w.plan.Status.(*appsv1.StatefulSet).Status; s.UpdatedReplicas != 1 || s.AvailableReplicas != 2 || s.CurrentRevision == s.UpdateRevision {
		t.Errorf("status during an update %+v", s)
	}
	w.expect("db-2 never becomes ready", "db-0:1 db-1:1 db-2:2")
	w.object = statefulSet(t, "3", "")
	w.expect("the next update replaces it first", "db-0:1 db-1:1 db-2:3")
	w.ready("db-2")
	w.expect("db-2 is ready", "db-0:1 db-1:3 db-2:3")
	w.ready("db-1")
	w.expect("db-1 is ready", "db-0:3 db-1:3 db-2:3")
	w.ready("db-0")
	*w.object.(*appsv1.StatefulSet).Spec.Replicas = 1
	w.expect("fewer", "db-0:3")
	w.object = statefulSet(t, "3", "\n  podManagementPolicy: Parallel")
	w.expect("all at once", "db-0:3 db-1:3 db-2:3")
}

// A claim belongs to a StatefulSet if it is one for one of its pods, those that were there, too.
func TestClaimOf(t *testing.T) {
	s := statefulSet(t, "1", "")
	for name, want := range map[string]bool{"data-db-0": true, "data-db-17": true, "data-db": false, "data-db-": false, "data-db-x": false, "data-db--1": false, "log-db-0": false} {
		c := manifest.ClaimOf(s, name)
		if (c != nil) != want || c != nil && (c.Name != name || c.Namespace != "default" || len(c.Spec.AccessModes) != 1) {
			t.Errorf("%s: %+v, want %v", name, c, want)
		}
	}
}
