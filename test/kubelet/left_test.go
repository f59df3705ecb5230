package kubelet

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A kubelet changes these settings of the whole machine (sysctl(8), as paths), and the kubelet and
// containerd make these directories whatever directories they are configured with.
var (
	machineSettings = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}
	machinePaths    = []string{"/var/lib/kubelet", "/var/log/containers", "/var/log/pods", "/run/containerd"}
)

// A snapshot is the state of the machine before a node starts: the settings by file, and which of
// the directories and cgroups exist.
type snapshot struct {
	settings map[string]string
	there    map[string]bool
}

func machine(t *testing.T) snapshot {
	t.Helper()
	s := snapshot{map[string]string{}, map[string]bool{}}
	for _, name := range machineSettings {
		path := filepath.Join("/proc/sys", name)
		data, err := os.ReadFile(path)
		check(t, err)
		s.settings[path] = string(data)
	}
	for _, path := range slices.Concat(machinePaths, kubepods()) {
		if _, err := os.Stat(path); err == nil {
			s.there[path] = true
		}
	}
	return s
}

// kubepods returns the default parents of pods' cgroups. The kubelet and the agent are configured
// not to use them.
func kubepods() (paths []string) {
	for _, dir := range hierarchies() {
		paths = append(paths, filepath.Join(dir, "kubepods"), filepath.Join(dir, "kubepods.slice"))
	}
	return paths
}

// restore restores the settings that a kubelet has changed, and removes what it has made.
func (s snapshot) restore(t *testing.T) {
	for path, value := range s.settings {
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			t.Error(err)
		}
	}
	for _, path := range machinePaths {
		if !s.there[path] {
			unmountBelow(path)
			if err := os.RemoveAll(path); err != nil {
				t.Error(err)
			}
		}
	}
}

// remember records the marks of the node while its files exist.
func (n *node) remember() {
	n.marks = []string{n.dir, podsCgroup, strings.TrimPrefix(podsCgroup, "/") + "-"}
	configs, _ := filepath.Glob(filepath.Join(n.dir, "crispd", "cni", "net.d", "*"))
	for _, path := range configs {
		data, _ := os.ReadFile(path)
		for _, name := range regexp.MustCompile(`"(?:bridge|name)": *"([^"]+)"`).FindAllStringSubmatch(string(data), -1) {
			n.marks = append(n.marks, name[1])
		}
	}
}

// leavesNothing fails for everything that the node has left or changed on the machine. Some of it
// disappears a moment after the call that ended it.
func (n *node) leavesNothing(before snapshot) {
	var left []string
	if !n.waits(5*time.Second, func() bool { left = n.left(before); return len(left) == 0 }) {
		n.t.Errorf("the %s and its node have left:\n  %s", n.driver, strings.Join(left, "\n  "))
	}
}

func (n *node) left(before snapshot) (left []string) {
	now := machine(n.t)
	for path, value := range now.settings {
		if value != before.settings[path] {
			left = append(left, fmt.Sprintf("%s is %q and was %q", path, value, before.settings[path]))
		}
	}
	for path := range now.there {
		if !before.there[path] {
			left = append(left, path)
		}
	}
	mine := func(line string) bool {
		return slices.ContainsFunc(n.marks, func(mark string) bool { return strings.Contains(line, mark) })
	}
	lines := func(kind, text string) {
		for line := range strings.Lines(text) {
			if mine(line) {
				left = append(left, kind+" "+strings.TrimSpace(line))
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	check(n.t, err)
	lines("mount", string(mounts))
	for _, dir := range hierarchies() {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				lines("cgroup", path)
			}
			return nil // a file that disappears meanwhile is no leak
		})
	}
	links, err := os.ReadDir("/sys/class/net")
	check(n.t, err)
	for _, l := range links {
		lines("link", l.Name())
	}
	if nft, err := exec.LookPath("nft"); err == nil {
		rules, err := exec.Command(nft, "list", "ruleset").Output()
		check(n.t, err)
		lines("nft", string(rules))
		if strings.Contains(string(rules), "KUBE-") {
			left = append(left, "chains of a kubelet in nftables")
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range processes {
		data, _ := os.ReadFile(path)
		lines("process "+filepath.Base(filepath.Dir(path)), strings.ReplaceAll(string(data), "\x00", " "))
	}
	if _, err := os.Stat(n.dir); err == nil && !n.t.Failed() {
		left = append(left, n.dir)
	}
	slices.Sort(left)
	return left
}
