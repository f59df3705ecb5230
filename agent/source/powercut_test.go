package source

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/test/powercut"
)

// After a power cut has lost a manifest, its copy is complete and keeps the pods.
func TestPowerCut(t *testing.T) {
	copies := func(dir string) Copies { return Copies(filepath.Join(dir, "copies", "manifests")) }
	text := func(n int) string { return fmt.Sprintf("version %d of the manifest", n) }
	powercut.Case{
		Name: "copies",
		Run: func(dir string, safe func(string)) {
			for n := range 2 {
				if err := copies(dir).put("/manifests/web.yaml", []byte(text(n))); err != nil {
					t.Error(err)
				}
				safe(text(n))
			}
		},
		Check: func(dir string, safe []string) error {
			got, err := copies(dir).get("/manifests/web.yaml")
			if err != nil {
				return err
			}
			for n := max(0, len(safe)-1); n <= len(safe); n++ {
				if string(got) == text(n) || got == nil && len(safe) == 0 {
					return nil
				}
			}
			return fmt.Errorf("the copy is %q", got)
		},
		Redundant: map[string]string{
			"fsync copies/ #2": "the directory is there since the first copy",
		},
	}.Test(t)
}
