package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/test/noleaks"
)

// marks are strings that distinguish the objects of this instance from those of another crispd on
// the machine: its directory, the IDs of its sandboxes and containers, its bridge and the
// interfaces on it, and its executor's cgroup.
type marks []string

// marks collects the marks. It is called while the pod is running.
func (d *demo) marks() marks {
	m := marks{d.dir}
	for _, kind := range []string{"sandboxes", "containers"} {
		m = append(m, list(filepath.Join(d.dir, "lib", kind))...)
	}
	configs, _ := filepath.Glob(filepath.Join(d.dir, "lib", "cni", "net.d", "*.conflist"))
	for _, path := range configs {
		for _, bridge := range bridges(path) {
			m = append(m, bridge)
			m = append(m, list(filepath.Join("/sys/class/net", bridge, "brif"))...)
		}
	}
	for _, pid := range processes(m) {
		cgroups, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
		if err != nil {
			continue // ended
		}
		for line := range strings.Lines(string(cgroups)) {
			if base := filepath.Base(strings.TrimSpace(line)); strings.HasPrefix(base, "crisp-") && !slices.Contains(m, base) {
				m = append(m, base)
			}
		}
	}
	return m
}

func (m marks) on(text string) bool {
	return slices.ContainsFunc(m, func(mark string) bool { return strings.Contains(text, mark) })
}

func list(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// bridges returns the names of the bridges in a CNI configuration.
func bridges(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var config struct {
		Plugins []struct {
			Bridge string `json:"bridge"`
		} `json:"plugins"`
	}
	if json.Unmarshal(data, &config) != nil {
		return nil
	}
	var names []string
	for _, p := range config.Plugins {
		if p.Bridge != "" {
			names = append(names, p.Bridge)
		}
	}
	return names
}

// processes returns the PIDs of the processes with a mark in their command line or cgroup, except
// the demo itself.
func processes(m marks) []string {
	var pids []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid := filepath.Base(dir)
		if pid == fmt.Sprint(os.Getpid()) {
			continue
		}
		for _, file := range []string{"cmdline", "cgroup"} {
			if data, err := os.ReadFile(filepath.Join(dir, file)); err == nil && m.on(string(data)) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// leaks returns an error that names the objects that still have a mark. The kernel takes a moment
// to remove some, such as the interfaces of a network namespace that has ended.
func leaks(m marks) error {
	var left []string
	for range 50 {
		now := noleaks.Snapshot{}
		if os.Geteuid() == 0 { // an ordinary user's are in namespaces that are gone
			var err error
			if now, err = noleaks.Take(); err != nil {
				return err
			}
		}
		left = nil
		for line := range now {
			if m.on(line) {
				left = append(left, line)
			}
		}
		for _, pid := range processes(m) {
			cmdline, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
			left = append(left, "process "+pid+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
		if len(left) == 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	slices.Sort(left)
	return fmt.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
}
