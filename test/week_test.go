package test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// weekPods are the pods of TestWeek that come from the API; others are from files.
const weekPods = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: done}
spec: {restartPolicy: Never, containers: [{name: app, image: IMAGE, args: [exit, "4"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: idle}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]}
`

// A week is an unattended node, and what befalls it.
type week struct {
	*lab
	config string
	random *rand.Rand
	resolv string // the node's resolv.conf
	server string // the name server in it
	state  string // what the node's systemctl says of the system
}

// What befalls a node in a week, at random: reboots, power cuts, kills of each program, a full disk, over which
// the agent may start, and a network that is lost and comes back with another name server. Afterwards
// every pod that should run runs, with that name server, and those that have ended or were stopped
// have not begun anew. WEEK_SEED chooses another week, and with WEEK_CLOCK=yes, on a machine of its
// own, the clock jumps too.
func TestWeek(t *testing.T) {
	seeds := []string{"1", "2", "3"}
	if seed := os.Getenv("WEEK_SEED"); seed != "" {
		seeds = []string{seed}
	}
	for _, seed := range seeds {
		t.Run(seed, func(t *testing.T) { newWeek(t, seed).pass() })
	}
}

func newWeek(t *testing.T, seed string) *week {
	n, config := startNode(t, func(n *node, _ string) error { return n.mountDisk(n.agentRoot(), []string{"64"}) })
	number, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	w := &week{config: config, random: rand.New(rand.NewPCG(number, 7)), resolv: filepath.Join(n.dir, "resolv.conf")}
	w.name(t, "192.0.2.1")
	programs := t.TempDir()
	w.state = filepath.Join(programs, "state")
	if err := os.WriteFile(filepath.Join(programs, "systemctl"), []byte("#!/bin/sh\ncat "+w.state+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	w.lab = labOn(t, n, "--resolv-conf", w.resolv)
	n.expects(`.`) // each program ends, and the disk is full
	w.answers()
	w.says(0, "", "apply", "-f", w.agentProcess.file("week.yaml", weekPods))
	w.pick(t, "file").write("  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], volumeMounts: [{name: d, mountPath: /d}]}]\n  volumes: [{name: d, emptyDir: {}}]\n")
	w.until(func() bool {
		out, code := w.agentProcess.crisp("", "stop", "idle")
		return code == 0 || strings.Contains(out, "stopped")
	}, "the pod idle is stopped")
	w.settles("at first")
	return w
}

func (w *week) name(t *testing.T, server string) {
	w.server = server
	text := ""
	if server != "" {
		text = "nameserver " + server + "\n"
	}
	if err := os.WriteFile(w.resolv, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (w *week) answers() {
	w.until(func() bool { _, code := w.agentProcess.crisp("", "get", "nodes"); return code == 0 }, "the agent answers")
}

// pass lets seven days pass, and then ends all pods.
func (w *week) pass() {
	befalls := []struct {
		what string
		do   func()
	}{
		{"a reboot", func() { w.reboot("stopping", syscall.SIGTERM) }}, {"a power cut", func() { w.reboot("running", syscall.SIGKILL) }},
		{"the end of the agent", func() { w.again(syscall.SIGTERM) }}, {"a kill of the agent", func() { w.again(syscall.SIGKILL) }},
		{"a kill of crispd", w.killDaemon}, {"a kill of the executor", w.killExecutor}, {"a full disk", w.fullDisk}, {"a lost network", w.lostNetwork},
	}
	if os.Getenv("WEEK_CLOCK") == "yes" {
		begun := time.Now()
		defer func() { w.setClock(begun.Round(0).Add(time.Since(begun))) }()
		befalls = append(befalls, struct {
			what string
			do   func()
		}{"a clock that jumps", w.clock})
	}
	w.random.Shuffle(len(befalls), func(i, j int) { befalls[i], befalls[j] = befalls[j], befalls[i] })
	for day := range befalls {
		what, more := []string{}, w.random.IntN(len(befalls))
		for _, b := range slices.Concat(befalls[day:day+1], befalls[more:more+w.random.IntN(2)]) {
			what = append(what, b.what)
			b.do()
		}
		w.settles(fmt.Sprintf("on day %d, after %s", day+1, strings.Join(what, " and ")))
	}
	for _, name := range []string{"deployment/web", "pod/done", "pod/idle"} {
		w.says(0, "deleted", "delete", name, "--grace-period", "0")
	}
	w.clear()
}

// settles waits until everything is as it should be.
func (w *week) settles(when string) {
	w.t.Helper()
	pods := "default/done=Failed/4\ndefault/file=true\ndefault/idle=Stopped\ndefault/web-0=true\ndefault/web-1=true"
	const form = `{range .items[*]}{.metadata.namespace}/{.metadata.name}={.status.phase}/{.status.containerStatuses[0].state.terminated.exitCode}/{.status.reason}/{.status.containerStatuses[0].ready}{"\n"}{end}`
	last := ""
	w.until(func() bool {
		out, _ := w.agentProcess.crisp("", "get", "pods", "-o", "jsonpath="+form)
		var lines []string
		for line := range strings.Lines(out) {
			name, state, _ := strings.Cut(strings.TrimSpace(line), "=")
			s := strings.Split(state, "/")
			switch {
			case len(s) < 4:
				return false
			case s[0] == "Failed":
				state = s[0] + "/" + s[1]
			case s[2] == "Stopped":
				state = s[2]
			default:
				state = s[3]
			}
			lines = append(lines, name+"="+state)
		}
		slices.Sort(lines)
		last = strings.Join(lines, "\n")
		return last == pods
	}, "all is as it should be "+when)
	if w.server != "" {
		for _, pod := range []string{"file", "web-0", "web-1"} {
			w.until(func() bool {
				out, _ := w.agentProcess.crisp("", "exec", pod, "--", "/testbin", "cat", "/etc/resolv.conf")
				return strings.Contains(out, w.server)
			}, pod+" has the name server "+when)
		}
	}
	w.t.Log(when, "all is as it should be")
}

func (w *week) again(sig syscall.Signal) {
	w.agentProcess.end(sig)
	w.start()
	w.answers()
}

func (w *week) reboot(state string, sig syscall.Signal) {
	if err := os.WriteFile(w.state, []byte(state+"\n"), 0o644); err != nil {
		w.t.Fatal(err)
	}
	w.agentProcess.end(sig)
	if err := os.Remove(w.state); err != nil {
		w.t.Fatal(err)
	}
	reboot(w.t, w.n)
	if w.random.IntN(2) == 0 { // faster than DHCP
		w.name(w.t, "")
	}
	w.startDaemon()
	w.start()
	w.answers()
	w.name(w.t, cmp.Or(w.server, w.another()))
}

func (w *week) startDaemon() {
	if err := w.n.start(w.config, nil); err != nil {
		w.t.Fatal(err)
	}
}

func (w *week) killDaemon() {
	if err := w.n.stopDaemon(syscall.SIGKILL); err != nil {
		w.t.Fatal(err)
	}
	w.startDaemon()
}

func (w *week) killExecutor() {
	w.until(func() bool { // after another kill crispd has yet to start it
		pid, err := w.n.executorPid()
		return err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil
	}, "an executor is killed")
}

func (w *week) fullDisk() {
	if err := fillDisk(w.n.agentRoot()); err != nil {
		w.t.Fatal(err)
	}
	if w.random.IntN(2) == 0 {
		w.again(syscall.SIGKILL)
	} else {
		w.killDaemon()
	}
	if err := freeDisk(w.n.agentRoot()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *week) another() string { return fmt.Sprintf("192.0.2.%d", 2+w.random.IntN(250)) }

func (w *week) lostNetwork() {
	w.name(w.t, "")
	if w.random.IntN(2) == 0 {
		w.again(syscall.SIGTERM)
	}
	w.name(w.t, w.another())
}

// clock sets the machine's clock back or forward, up to two days.
func (w *week) clock() {
	w.setClock(time.Now().Add(time.Duration(w.random.Int64N(int64(96*time.Hour))) - 48*time.Hour))
}

func (w *week) setClock(to time.Time) {
	ts := unix.NsecToTimespec(to.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		w.t.Fatal(err)
	}
}
