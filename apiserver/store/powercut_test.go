package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/powercut"
	v1 "k8s.io/api/core/v1"
)

// After a power cut, every completed "crisp apply" and "crisp delete" has taken effect, and none is
// half done.
func TestPowerCut(t *testing.T) {
	const key = "configmap default/c"
	openAt := func(dir string) (*store.Store, string, error) {
		var said bytes.Buffer
		s, err := store.Open(filepath.Join(dir, "root", "objects"), "n1", pods{}, slog.New(slog.NewTextHandler(&said, nil)))
		return s, said.String(), err
	}
	powercut.Case{
		Name: "objects",
		Run: func(dir string, safe func(string)) {
			s, _, err := openAt(dir)
			if err != nil {
				t.Error(err)
				return
			}
			put(t, s, config, store.PutOptions{}, store.Created)
			safe("c=1")
			put(t, s, web, store.PutOptions{}, store.Created)
			safe("web")
			put(t, s, strings.Replace(config, `"1"`, `"2"`, 1), store.PutOptions{}, store.Configured)
			safe("c=2")
			if _, err := s.Delete(key, "", nil, false); err != nil {
				t.Error(err)
			}
			safe("c deleted")
		},
		Check: func(dir string, safe []string) error {
			s, said, err := openAt(dir)
			if err != nil || said != "" {
				return fmt.Errorf("%v, %s", err, said)
			}
			if _, err := s.Get("pod default/web"); err != nil && slices.Contains(safe, "web") {
				return err
			}
			got := ""
			switch object, err := s.Get(key); {
			case err == nil:
				got = object.(*v1.ConfigMap).Data["a"]
			case !errors.Is(err, fault.NotFound):
				return err
			}
			// What c may be depends on the number of operations that were reported as done.
			may := [][]string{{"", "1"}, {"1"}, {"1", "2"}, {"2", ""}, {""}}[len(safe)]
			if !slices.Contains(may, got) {
				return fmt.Errorf("c is %q, want one of %q", got, may)
			}
			return nil
		},
	}.Test(t)
}
