package podfiles

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/crisp-cri/crisp/test/powercut"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// After a power cut an accepted pod is known as it was accepted. A pod that was being accepted or
// removed leaves nothing behind.
func TestPowerCut(t *testing.T) {
	openAt := func(dir string) (*Store, string, error) {
		var said bytes.Buffer
		s, err := Open(Options{Root: filepath.Join(dir, "root"), LogDir: filepath.Join(dir, "logs"), Log: slog.New(slog.NewTextHandler(&said, nil))})
		return s, said.String(), err
	}
	first, changed, second := pod("1", "app"), pod("1", "app", "debugger"), pod("2", "app")
	powercut.Case{
		Name: "pods",
		Run: func(dir string, safe func(string)) {
			s, _, err := openAt(dir)
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
			ok("first", s.Accept(first))
			ok("status", s.SaveStatus(first, &v1.PodStatus{Phase: v1.PodRunning}))
			ok("second", s.Accept(second))
			ok("changed", s.Change(changed))
			ok("removed", s.removeDir("1"))
		},
		Check: func(dir string, safe []string) error {
			s, said, err := openAt(dir)
			if err != nil || said != "" {
				return fmt.Errorf("%v, %s", err, said)
			}
			is := func(what string) bool { return slices.Contains(safe, what) }
			got := s.Pod("1")
			switch {
			case got == nil && (!is("first") || is("changed")):
			case cmp.Equal(got, first) && !is("changed"), cmp.Equal(got, changed) && is("second"):
			default:
				return fmt.Errorf("the first is %v", got)
			}
			if got != nil {
				_ = s.LoadStatus(got)
			}
			if got := s.Pod("2"); is("second") && !cmp.Equal(got, second) {
				return fmt.Errorf("the second is %v", got)
			}
			// Anything else belongs to a pod and is removed with it.
			entries, err := os.ReadDir(s.dir())
			if errors.Is(err, fs.ErrNotExist) && !is("first") {
				return nil
			}
			for _, e := range entries {
				if s.Pod(types.UID(e.Name())) == nil {
					return fmt.Errorf("%s has no pod", e.Name())
				}
			}
			return err
		},
	}.Test(t)
}
