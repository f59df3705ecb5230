package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/test/powercut"
)

// After a power cut, the content of a Write that has returned is complete, or replaced by a later
// one.
func TestPowerCut(t *testing.T) {
	powercut.Case{
		Name: "write",
		Run: func(dir string, safe func(string)) {
			for n := range 3 {
				if err := Write(filepath.Join(dir, "file"), content(n), 0o640); err != nil {
					t.Error(err)
				}
				safe(fmt.Sprintf("version %d", n))
			}
		},
		Check: func(dir string, safe []string) error {
			path := filepath.Join(dir, "file")
			got, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) && len(safe) == 0 {
				return nil
			}
			if err != nil {
				return err
			}
			st, err := os.Stat(path)
			if err != nil {
				return err
			}
			for n := max(0, len(safe)-1); n <= len(safe); n++ {
				if string(got) == string(content(n)) && st.Mode() == 0o640 {
					return nil
				}
			}
			return fmt.Errorf("it has %q, mode %v", got, st.Mode())
		},
	}.Test(t)
}

// WriteVolatile only promises that readers never see a part of the content.
func TestPowerCutVolatile(t *testing.T) {
	powercut.Case{
		Name: "write_volatile",
		Run: func(dir string, safe func(string)) {
			if err := WriteVolatile(filepath.Join(dir, "file"), content(0), 0o600); err != nil {
				t.Error(err)
			}
		},
		Check: func(string, []string) error { return nil },
	}.Test(t)
}

// Files in directories made by MakeDirs are there after a power cut, however many of the
// directories are new, and even if another program has made some without syncing them.
func TestPowerCutMakeDirs(t *testing.T) {
	powercut.Case{
		Name: "make_dirs",
		Run: func(dir string, safe func(string)) {
			for _, sub := range []string{"a/b/c", "theirs"} {
				if sub == "theirs" {
					if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
						t.Error(err)
					}
				}
				if err := MakeDirs(filepath.Join(dir, sub), 0o700); err != nil {
					t.Error(err)
				}
				if err := Write(filepath.Join(dir, sub, "file"), content(0), 0o600); err != nil {
					t.Error(err)
				}
				safe(sub)
			}
		},
		Check: func(dir string, safe []string) error {
			for _, sub := range safe {
				if got, err := os.ReadFile(filepath.Join(dir, sub, "file")); err != nil || string(got) != string(content(0)) {
					return fmt.Errorf("%s has %q: %v", sub, got, err)
				}
			}
			return nil
		},
	}.Test(t)
}

func content(n int) []byte { return fmt.Appendf(nil, "this is version %d", n) }
