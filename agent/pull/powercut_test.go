package pull

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/crisp-cri/crisp/test/powercut"
)

// After a power cut an image that a pod has pulled with its secret still belongs to that pod, from
// the moment when the runtime may have it. Without a record it would count as preloaded, which
// every pod may use.
func TestPowerCut(t *testing.T) {
	const image, id = "registry.example/private:v1", "sha256:1"
	mine := Source{UID: "u", Namespace: "default", Name: "pull", Hash: "h"}
	other := Source{UID: "v", Namespace: "other", Name: "pull", Hash: "i"}
	openAt := func(dir string) (*Ledger, error) {
		return OpenLedger(filepath.Join(dir, "root"), NeverVerifyPreloaded, nil)
	}
	powercut.Case{
		Name: "pulled",
		Run: func(dir string, safe func(string)) {
			l, err := openAt(dir)
			if err != nil {
				t.Error(err)
				return
			}
			ok := func(what string, err error) {
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
				safe(what)
			}
			ok("begun", l.Begin(image))
			ok("pulled", l.Done(image, id, &mine))
			ok("begun again", l.Begin(image))
			ok("failed", l.Failed(image))
		},
		Check: func(dir string, safe []string) error {
			l, err := openAt(dir)
			if err != nil || len(safe) == 0 {
				return err
			}
			for _, secrets := range [][]Source{nil, {other}} {
				if may, err := l.MayUse(image, id, secrets); may || err != nil {
					return fmt.Errorf("with %v the image may be used: %v, %v", secrets, may, err)
				}
			}
			may, err := l.MayUse(image, id, []Source{mine})
			if err != nil || !may && slices.Contains(safe, "pulled") {
				return fmt.Errorf("who pulled the image may use it: %v, %v", may, err)
			}
			return nil
		},
		Redundant: map[string]string{
			"fsync root/images/":                      "the next one is for both directories",
			"fsync root/images/pulling/.<1>.*.tmp":    "only the name of this file is looked at",
			"fsync root/images/pulling/.<1>.*.tmp #2": "only the name of this file is looked at",
			"fsync root/images/pulling/ #2":           "it was pulled before: the record says all that this would",
		},
	}.Test(t)
}
