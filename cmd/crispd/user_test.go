package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/procstat"
)

// A user's ranges are listed by name or by number; what is no range is none.
func TestRanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subuid")
	id := os.Getuid()
	text := fmt.Sprintf("other:1:2\n%d:100000:65536\n# a comment\n\n%d:7\n%d:300000:10\n", id, id, id)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([][2]string{{"100000", "65536"}, {"300000", "10"}}, ranges(path)); d != "" {
		t.Error(d)
	}
	if list := ranges(path + ".none"); list != nil {
		t.Errorf("a file that is missing has %v", list)
	}
}

// A keeper is the process that was started, not one that has its number now.
func TestKeptBy(t *testing.T) {
	stat, err := procstat.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{
		fmt.Sprintln(os.Getpid(), stat.StartTime):   os.Getpid(),
		fmt.Sprintln(os.Getpid(), stat.StartTime+1): 0,
		"":             0,
		"nonsense":     0,
		"4194304000 1": 0,
	} {
		f, err := os.Create(filepath.Join(t.TempDir(), "keeper"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte(text), 0); err != nil {
			t.Fatal(err)
		}
		if pid, err := keptBy(f); pid != want || err != nil {
			t.Errorf("%q: got %d, %v, want %d", text, pid, err, want)
		}
	}
}

// An ordinary user's instance has nothing in the machine's directories.
func TestUserDefaults(t *testing.T) {
	home := t.TempDir()
	for name, value := range map[string]string{"HOME": home, "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": "relative", runtimeDir: "/run/user/7"} {
		t.Setenv(name, value)
	}
	var src config.Source
	if err := userDefaults(&src); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(home, ".config/crisp")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte("log_max_line = 4096\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(src)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(home, ".local/share/crisp"), "/run/user/7/crisp", "/run/user/7/crisp/crisp.sock", dir + "/auth", dir + "/policies", dir + "/keys", "4096"}
	got := []string{c.Root, c.State, c.Socket, c.Image.AuthDir, c.Image.PolicyDir, c.Image.DecryptionKeysPath, fmt.Sprint(c.LogMaxLine)}
	if d := cmp.Diff(want, got); d != "" || c.DefaultInstance() {
		t.Errorf("default instance %v: %s", c.DefaultInstance(), d)
	}
}
