package powercut

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/test/filetrace"
)

// careful replaces a file correctly, without the steps named in leaveOut.
func careful(dir, content string, leaveOut ...string) error {
	skip := func(step string) bool { return slices.Contains(leaveOut, step) }
	tmp, path := filepath.Join(dir, ".new"), filepath.Join(dir, "file")
	if skip("temporary file") {
		tmp = path
	}
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(content); err != nil {
		return err
	}
	if !skip("sync") {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if tmp != path {
		if err := os.Rename(tmp, path); err != nil {
			return err
		}
	}
	if skip("sync of the directory") {
		return nil
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func judge(t *testing.T, c Case) []string {
	t.Helper()
	dir := t.TempDir()
	before, err := snapshot(dir)
	if err != nil {
		t.Fatal(err)
	}
	tr := filetrace.Start(t, dir)
	c.Run(dir, tr.Mark)
	ops := tr.Stop()
	d, err := newDisk(before, ops)
	if err != nil {
		t.Fatal(err)
	}
	e := newEnumeration(c, d, c.transcript(ops), room(t, false))
	faults := e.all()
	if len(faults) == 0 {
		faults = e.without()
	}
	return faults
}

// wholeFile accepts a file with the complete content that was safe last or is being written.
func wholeFile(dir string, safe []string) error {
	data, err := os.ReadFile(filepath.Join(dir, "file"))
	if errors.Is(err, fs.ErrNotExist) && len(safe) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	got := strings.TrimRight(string(data), "!")
	for n := range 3 {
		if want := fmt.Sprintf("version %d", n); got == want && n+1 >= len(safe) {
			return nil
		}
	}
	return fmt.Errorf("file has %q", data)
}

// Each step of replacing a file is needed, and the model finds out why.
func TestReplaceOfAFile(t *testing.T) {
	for _, tt := range []struct {
		leaveOut []string
		want     string // "": nothing is wrong
	}{
		{nil, ""},
		{[]string{"sync"}, `file has ""`},
		{[]string{"sync of the directory"}, "no such file"},
		{[]string{"temporary file"}, `file has ""`},
	} {
		faults := judge(t, Case{
			Run: func(dir string, safe func(string)) {
				for n := range 3 {
					if err := careful(dir, fmt.Sprintf("version %d!!!!!!!!!!!!", n), tt.leaveOut...); err != nil {
						t.Error(err)
					}
					safe(fmt.Sprint(n))
				}
			},
			Check: wholeFile,
		})
		got := strings.Join(faults, "\n")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("without %q: want a fault with %q, got:\n%s", tt.leaveOut, tt.want, got)
		}
	}
}

// A sync without effect is reported, unless a reason is given.
func TestSyncInVain(t *testing.T) {
	c := Case{
		Run: func(dir string, safe func(string)) {
			if err := careful(dir, "version 0"); err != nil {
				t.Error(err)
			}
			if err := syncDir(dir); err != nil {
				t.Error(err)
			}
			safe("0")
		},
		Check: wholeFile,
	}
	got := strings.Join(judge(t, c), "\n")
	if !strings.Contains(got, `"fsync ."`) || !strings.Contains(got, `"fsync . #2"`) {
		t.Errorf("got %s", got)
	}
	c.Redundant = map[string]string{"fsync .": "the next one does it", "fsync . #2": "the one before did it"}
	if got := judge(t, c); len(got) != 0 {
		t.Errorf("got %s", got)
	}
	c.Redundant["fsync .new"] = "who knows"
	if got := strings.Join(judge(t, c), "\n"); !strings.Contains(got, "not redundant") {
		t.Errorf("got %s", got)
	}
	c.Redundant["fsync elsewhere"] = "it was here once"
	if got := strings.Join(judge(t, c), "\n"); !strings.Contains(got, "elsewhere") {
		t.Errorf("got %s", got)
	}
}

// A file in a new directory also needs the directory's entry to be synced.
func TestNewDirectory(t *testing.T) {
	for _, sync := range []bool{true, false} {
		faults := judge(t, Case{
			Run: func(dir string, safe func(string)) {
				sub := filepath.Join(dir, "sub")
				if err := os.Mkdir(sub, 0o700); err != nil {
					t.Error(err)
				}
				if sync {
					if err := syncDir(dir); err != nil {
						t.Error(err)
					}
				}
				if err := careful(sub, "version 0"); err != nil {
					t.Error(err)
				}
				safe("0")
			},
			Check: func(dir string, safe []string) error { return wholeFile(filepath.Join(dir, "sub"), safe) },
		})
		if (len(faults) == 0) != sync {
			t.Errorf("directory synced: %v, got %q", sync, faults)
		}
	}
}

// Changes in different directories have no order: a moved file is in exactly one of them, but a
// file made later in another directory may be there earlier.
func TestOrderOfDirectories(t *testing.T) {
	seen := map[string]bool{}
	faults := judge(t, Case{
		Run: func(dir string, safe func(string)) {
			for _, step := range []func() error{
				func() error { return os.Mkdir(filepath.Join(dir, "a"), 0o700) },
				func() error { return os.Mkdir(filepath.Join(dir, "b"), 0o700) },
				func() error { return syncDir(dir) },
				func() error { return os.WriteFile(filepath.Join(dir, "a", "first"), nil, 0o600) },
				func() error { return os.WriteFile(filepath.Join(dir, "b", "second"), nil, 0o600) },
				func() error { return os.Rename(filepath.Join(dir, "a", "first"), filepath.Join(dir, "b", "moved")) },
			} {
				if err := step(); err != nil {
					t.Error(err)
				}
			}
		},
		Check: func(dir string, _ []string) error {
			found, err := filepath.Glob(filepath.Join(dir, "*", "*"))
			for i := range found {
				found[i] = strings.TrimPrefix(found[i], dir+"/")
			}
			seen[strings.Join(found, " ")] = true
			return err
		},
		Redundant: map[string]string{"fsync .": "Check accepts everything"},
	})
	if len(faults) != 0 {
		t.Error(faults)
	}
	for state, want := range map[string]bool{
		"": true, "a/first": true, "b/second": true, "a/first b/second": true,
		"b/moved b/second": true, "b/moved": false, "a/first b/moved": false,
	} {
		if seen[state] != want {
			t.Errorf("disk with %q: %v, want %v", state, seen[state], want)
		}
	}
}
