package volume

import (
	"errors"
	"os"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
)

// A container that ends after an object of its pod's volumes was deleted starts again, with what
// the pod has of it. The next pod waits for the object, and so does one whose files are gone.
func TestObjectIsGone(t *testing.T) {
	for name, source := range map[string]v1.VolumeSource{
		"config map": {ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("c")}},
		"key":        {ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("c"), Items: []v1.KeyToPath{{Key: "a", Path: "a"}}}},
		"secret":     {Secret: &v1.SecretVolumeSource{SecretName: "s"}},
		"claim":      {PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "p"}},
		"read-only":  {PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "r"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, o := maker(t)
			p := pod(t, m, source)
			before, err := os.ReadDir(makeAll(t, m, p))
			if err != nil {
				t.Fatal(err)
			}
			if delete(o.maps["c"], "a"); name != "key" {
				delete(o.maps, "c")
			}
			delete(o.secrets, "s")
			delete(o.claims, "p")
			delete(o.claims, "r")
			err = m.Make(t.Context(), p)
			if name == "read-only" { // nothing tells any more that it is
				if !errors.Is(err, fault.NotFound) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if after, err := os.ReadDir(m.Path(p, &p.Spec.Volumes[0])); err != nil || len(after) != len(before) {
				t.Errorf("%v, before %v: %v", after, before, err)
			}
			if err := m.Remove(p.UID); err != nil {
				t.Fatal(err)
			}
			if err := m.Make(t.Context(), p); !errors.Is(err, fault.NotFound) {
				t.Errorf("another pod: %v", err)
			}
		})
	}
}
