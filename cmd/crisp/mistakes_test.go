package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
)

// What people type by mistake, and what helps them.
func TestMistakes(t *testing.T) {
	n := newNode(t)
	big := n.file("big.yaml", webPod+strings.Repeat("#\n", manifest.MaxSize/2))
	env := n.file("env", "# ours\nA=1\nexport C=1\n")
	n.expect(
		expectation{"gett pods", exitUsage, `there is no command "gett": see get or crisp help`},
		expectation{"frobnicate", exitUsage, `there is no command "frobnicate": see`},
		expectation{"--version", 0, `^crisp version \S+\n$`},
		expectation{"help", 0, `(?s)run and look \(crisp run -it --rm busybox sh\):\n.*\nimages \(crisp pull .*for scripts \(crisp wait `},
		expectation{"help stop", 0, `--time seconds +the same seconds, docker's name\n`},
		expectation{"validate -f " + big, exitInvalid, `big\.yaml: \d+ bytes, more than a manifest may have \(4194304\)`},
		expectation{"run --dry-run client --env-file " + env + " x", exitUsage, `env:3: the name "export C" has a blank`},
		expectation{"rm -f web", exitFailure, `stat web: no such file or directory: -f is a manifest; --force kills a pod at once`},
		expectation{"status", exitUnreachable, `(?m)^agent +\S+: \S.*is not reachable`},
	)
}

// The columns of a watch are as wide as what there is, and its first lines are in order.
func TestWatchColumns(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.until("status -o json", `"alive": true`)
	for _, name := range []string{"b", "a-pod-with-a-name-of-many-letters"} {
		n.expect(expectation{"apply -f " + n.file(name+".yaml", strings.Replace(webPod, "name: web}", "name: "+name+"}", 1)), 0, `pod/` + name + ` created\n`})
	}
	n.until("get pods", `(?m)^b +2/2 +Running`)
	n.until("get pods", `(?m)^a\S+ +2/2 +Running`)
	out, errs, _ := n.crispFor(3*time.Second, "get pods -w")
	lines := strings.Split(out, "\n")
	if len(lines) < 3 || !strings.HasPrefix(lines[1], "a-pod") || !strings.HasPrefix(lines[2], "b ") {
		t.Fatalf("%q, %s", lines, errs)
	}
	ready := regexp.MustCompile(`READY|2/2`)
	at := ready.FindStringIndex(lines[0])
	for _, line := range lines[1:3] {
		if got := ready.FindStringIndex(line); got == nil || got[0] != at[0] {
			t.Errorf("READY is at %v, and at %v of\n%s", at, got, line)
		}
	}
}

// Events of an object are those of the last one of its name.
func TestEventsOfLast(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.until("status -o json", `"alive": true`)
	f := n.file("web.yaml", webPod)
	for range 2 {
		n.expect(expectation{"apply -f " + f, 0, `pod/web created\n$`})
		n.until("get pods", `(?m)^web +2/2 +Running`)
		n.expect(expectation{"delete pod/web --grace-period 0", 0, `pod/web`})
	}
	all, _, _ := n.crisp("events")
	if got := strings.Count(all, " Started "); got != 4 {
		t.Errorf("%d starts in all:\n%s", got, all)
	}
	if one, errs, _ := n.crisp("events --for pod/web"); strings.Count(one, " Started ") != 2 {
		t.Errorf("of the last one:\n%s%s", one, errs)
	}
}
