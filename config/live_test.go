package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/crisp-cri/crisp/config"
)

// A reload applies what can be applied, reports every changed key, and keeps
// reporting those that wait for a restart.
func TestReload(t *testing.T) {
	dir := write(t, map[string]string{"config.toml": "cgroup_driver = \"cgroupfs\"\n[image]\npinned = [\"a\"]\n[handlers.old]\n[handlers.kept]\nengine = \"/bin/runc\"\n"})
	src := config.Source{File: filepath.Join(dir, "config.toml")}
	c, err := config.Load(src)
	if err != nil {
		t.Fatal(err)
	}
	rewrite := func(text string) {
		t.Helper()
		if err := os.WriteFile(src.File, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rewrite("cgroup_driver = \"systemd\"\n[image]\npinned = [\"a\", \"b\"]\n[log]\nlevel = \"debug\"\n[handlers.kept]\nengine = \"/bin/crun\"\n[handlers.apart]\ncni_conf_dir = \"/n\"\n")
	for range 2 {
		next, changes, err := c.Reload(src)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, ch := range changes {
			got[ch.Key] = ch.Old + " → " + ch.New
			if ch.Takes == "" {
				got[ch.Key] += ", later"
			}
		}
		for key, want := range map[string]string{
			"cgroup_driver":               `"cgroupfs" → "systemd", later`,
			"image.pinned":                `["a"] → ["a", "b"]`,
			"log.level":                   `"info" → "debug"`,
			"handlers.kept.engine":        `"/bin/runc" → "/bin/crun"`,
			"handlers.old.engine":         `"libcontainer" → `,
			"handlers.apart.engine":       ` → "libcontainer", later`,
			"handlers.apart.cni_conf_dir": ` → "/n", later`,
		} {
			if got[key] != want {
				t.Errorf("%s: %q, want %q", key, got[key], want)
			}
		}
		if next.CgroupDriver != "cgroupfs" || next.Log.Level != "debug" || len(next.Image.Pinned) != 2 {
			t.Errorf("in force: %s, %s, %v", next.CgroupDriver, next.Log.Level, next.Image.Pinned)
		}
		var handlers []string
		for _, h := range []string{"old", "kept", "apart"} {
			if next.Handlers[h] != nil {
				handlers = append(handlers, h)
			}
		}
		if d := cmp.Diff([]string{"kept"}, handlers); d != "" {
			t.Error(d)
		}
	}
	next, _, _ := c.Reload(src)
	if _, changes, err := next.Reload(src); err != nil || len(changes) < 1 || changes[0].Key != "cgroup_driver" && changes[len(changes)-1].Takes != "" {
		t.Errorf("the second time: %v, %v", changes, err)
	} else {
		for _, ch := range changes {
			if ch.Takes != "" {
				t.Errorf("%s is reported again", ch.Key)
			}
		}
	}

	rewrite("cgroup_driver = \"systemd\"\n\nno_such = 1\n")
	if _, _, err := c.Reload(src); err == nil || !strings.Contains(err.Error(), src.File+":3") {
		t.Errorf("a bad file: %v, want its line", err)
	}
}

// A key that is marked live must exist.
func TestLiveKeysExist(t *testing.T) {
	c, err := config.Load(config.Source{})
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	if err := c.Write(&all); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"log.level", "metrics.address", "hooks_dir", "image.pinned", "rlimits"} {
		if config.Takes(key) == "" {
			t.Errorf("%s needs a restart", key)
		}
	}
	for _, key := range []string{"root", "state", "socket", "cgroup_driver", "cni.conf_dir", "nri.socket", "log.format", "handlers.x.cni_conf_dir"} {
		if config.Takes(key) != "" {
			t.Errorf("%s is taken at once", key)
		}
	}
}
