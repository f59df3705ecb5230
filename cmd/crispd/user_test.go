package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/crisp-cri/crisp/config"
)

// An ordinary user's instance has nothing in the machine's directories.
func TestUserDefaults(t *testing.T) {
	home := t.TempDir()
	for name, value := range map[string]string{"HOME": home, "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": "relative", "XDG_RUNTIME_DIR": "/run/user/7"} {
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
