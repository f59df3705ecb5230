package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// kernelTrouble matches the kernel's reports of faults in itself, a driver or a file system, and of
// crashes of our programs.
var kernelTrouble = regexp.MustCompile(`\bWARNING: |\bBUG: |\bOops\b|general protection fault|Kernel panic|Tainted: |blocked for more than \d+ seconds|EXT4-fs error|\bcrisp[a-z-]*\[\d+\]: segfault`)

// programTrouble matches Go programs' reports of faults, including recovered panics of our servers.
var programTrouble = regexp.MustCompile(`\bpanic: |\bpanicked\b|fatal error: |WARNING: DATA RACE|unexpected fault address`)

// announced are harmless matches, each with the reason.
var announced = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`watchdog: BUG: soft lockup`), "the emulator's processors stand still while the machine does something else"},
}

// trouble returns the lines of the journal that must not exist: of the kernel, and of everything
// else.
func trouble(kernel, others string) (lines []string) {
	for _, j := range []struct {
		text string
		is   *regexp.Regexp
	}{{kernel, kernelTrouble}, {others, programTrouble}} {
	next:
		for line := range strings.Lines(j.text) {
			if !j.is.MatchString(line) {
				continue
			}
			for _, a := range announced {
				if a.pattern.MatchString(line) {
					continue next
				}
			}
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// readJournal saves the journal and the kernel's log, and is a step that fails if there is trouble
// in them.
func readJournal(logs string) result {
	r := result{Step: "journal"}
	read := func(args ...string) string {
		out, err := exec.Command("journalctl", append([]string{"-b", "--no-pager", "-o", "short-precise"}, args...)...).Output()
		if err != nil {
			r.Err = fmt.Sprintf("journalctl: %v", err)
		}
		return string(out)
	}
	if err := os.WriteFile(filepath.Join(logs, "journal.log"), []byte(read()), 0o644); err != nil {
		r.Err = err.Error()
	}
	lines := trouble(read("_TRANSPORT=kernel"), read("_TRANSPORT=stdout", "_TRANSPORT=syslog", "_TRANSPORT=journal"))
	if t := tainted(); t != "" {
		lines = append(lines, "the kernel is tainted: "+t)
	}
	if len(lines) > 0 {
		r.Err = strings.Join(append([]string{r.Err}, lines...), "\n  ")
	}
	return r
}

// softLockup is the taint flag of the announced trouble
// (Documentation/admin-guide/tainted-kernels).
const softLockup = 1 << 14

// tainted returns the kernel's own account of its faults, "" without faults.
func tainted() string {
	data, err := os.ReadFile("/proc/sys/kernel/tainted")
	if err != nil {
		return err.Error()
	}
	flags, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err == nil && flags&^softLockup == 0 {
		return ""
	}
	return string(data)
}
