package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/noleaks"
	"github.com/crisp-cri/crisp/test/testns"
)

// takeIdle remembers the state of the node with its daemons and without pods.
func (n *node) takeIdle() (err error) {
	if n.idle == nil && testns.Isolated() {
		n.idle, err = noleaks.TakeAll()
	}
	return err
}

// withoutPods removes the pods that a test has left, and returns an error with their remains.
// `crispd wipe` would remove these, and so hide what RemovePodSandbox forgets.
func (n *node) withoutPods() error {
	if !testns.Isolated() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	all, err := n.runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var problems []error
	for _, sb := range all.Items {
		if _, err := n.runtime().StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sb.Id}); err != nil {
			problems = append(problems, err)
		}
		if _, err := n.runtime().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sb.Id}); err != nil {
			problems = append(problems, err)
		}
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	for _, remove := range n.afterPods {
		remove()
	}
	// An agent without --cgroup-root leaves these cgroups on its node, as a kubelet does.
	// One with a pod's cgroup in it cannot be removed, and is reported.
	removeCgroups(append(n.parents, "kubepods/burstable", "kubepods/besteffort", "kubepods")...)
	var left []string
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		now, err := noleaks.TakeAll()
		if err != nil {
			return err
		}
		left = slices.DeleteFunc(now.Since(n.idle), n.stays)
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			break
		}
	}
	return fmt.Errorf("left of pods that were removed:\n  %s", strings.Join(left, "\n  "))
}

// stays reports whether a line of noleaks is about something that the daemons keep without pods:
// images, the bridge with its rules, the roots of cgroups and mounts, and what the test has made.
func (n *node) stays(line string) bool {
	kind, rest, _ := strings.Cut(line, " ")
	switch kind {
	case "file":
		if rest, ok := strings.CutPrefix(rest, n.state+"/"); ok { // directories are those of pods
			top, below, deep := strings.Cut(rest, "/")
			return !deep || top == "podinit" || top == "executor" && (below == "bundles" || strings.HasPrefix(below, "engines") && strings.Count(below, "/") < 2)
		}
		if strings.HasPrefix(rest, n.root+"/cni/") {
			return !addressOrResult.MatchString(rest)
		}
		return !strings.HasPrefix(rest, n.root+"/sandboxes/") && !strings.HasPrefix(rest, n.root+"/containers/") && !strings.HasPrefix(rest, "/run/")
	case "mount":
		state := n.state
		if real, err := filepath.EvalSymlinks(state); err == nil {
			state = real
		}
		return rest == state+"/sandboxes #1" || rest == state+"/netns #1" || strings.HasPrefix(rest, filepath.Join(n.dir, "disk")+" ")
	case "cgroup":
		return filepath.Base(rest) == "crisp" // the parent of sandboxes without a cgroup_parent
	case "link", "address", "route":
		return bridgeName.MatchString(rest)
	case "nft": // elements are host ports of pods
		return bridgeName.MatchString(rest) && !strings.Contains(rest, "elements =")
	case "process": // or a restarted one
		ours := func(name string) bool { return strings.Contains(rest, name) }
		return slices.ContainsFunc([]string{"(crispd)", "(crisp-executor)", "(slirp4netns)"}, ours) && strings.Contains(rest, n.state)
	case "listening":
		return !strings.Contains(rest, "/") || strings.Contains(rest, n.dir)
	}
	return false
}

var (
	// addressOrResult matches a pod's address, or a network plugin's result for a pod.
	addressOrResult = regexp.MustCompile(`/ipam/[^/]+/[0-9a-f]*[.:][0-9a-f.:]+$|/results/.`)
	// bridgeName matches the name of crisp's own bridge and table.
	bridgeName = regexp.MustCompile(`\bcrisp-[0-9a-f]{6,}\b`)
)

// log returns the file that every crispd of this node logs to.
func (n *node) log() string { return filepath.Join(n.dir, "crispd.log") }

// expects announces an error in a daemon's log, by a regular expression for its line.
func (n *node) expects(line string) { n.expected = append(n.expected, regexp.MustCompile(line)) }

// logErrorCmd is: log-error REGEXP
func (n *node) logErrorCmd(_ *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errUsage
	}
	r, err := regexp.Compile(args[0])
	n.expected = append(n.expected, r)
	return err
}

// trouble matches lines that fail every test: a recovered panic, a report of the race detector, an
// error that a daemon has only logged. The error of a failed RPC was returned to its caller.
var (
	trouble  = regexp.MustCompile(`panicked|panic:|DATA RACE|fatal error|"level":"ERROR"|level=ERROR`)
	answered = regexp.MustCompile(`"msg":"rpc failed"`)
)

// checkLogs fails t for each line of trouble that was not announced, and if t has failed,
// shows the ends of the logs.
func (n *node) checkLogs(t testing.TB) {
	for _, line := range n.trouble() {
		t.Error(line)
	}
	if !t.Failed() {
		return
	}
	for _, path := range n.logs() {
		if text, err := os.ReadFile(path); err == nil {
			t.Logf("the end of %s:\n%s", filepath.Base(path), text[max(0, len(text)-8<<10):])
		}
	}
}

func (n *node) logs() []string {
	return []string{n.log(), filepath.Join(n.dir, "executor.log"), filepath.Join(n.dir, "agent.log")}
}

func (n *node) trouble() (lines []string) {
	for _, path := range n.logs() {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it does not exist
		}
		report := false
		for line := range bytes.Lines(text) {
			announced := func(r *regexp.Regexp) bool { return r.Match(line) }
			if report {
				lines[len(lines)-1] += "\n" + string(bytes.TrimRight(line, "\n"))
				report = !bytes.HasPrefix(line, []byte("=========="))
				continue
			}
			if trouble.Match(line) && !answered.Match(line) && !slices.ContainsFunc(n.expected, announced) {
				lines = append(lines, fmt.Sprintf("%s: %s", filepath.Base(path), bytes.TrimSpace(line)))
				report = bytes.Contains(line, []byte("DATA RACE")) // its stacks follow
			}
		}
	}
	return lines
}

// The leftovers of RemovePodSandbox are found before a wipe removes them, and so is an error that a
// daemon has only logged.
func TestWhatIsLeftIsFound(t *testing.T) {
	if !testns.Isolated() {
		t.Skip("needs root, and no systemd: others use this machine")
	}
	n, _ := startNode(t)
	pod, err := n.sandboxConfig("p", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.runtime().RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod}); err != nil {
		t.Fatal(err)
	}
	if err := n.withoutPods(); err != nil {
		t.Fatal(err)
	}
	leases, _ := filepath.Glob(filepath.Join(n.root, "cni", "ipam", "*"))
	if len(leases) != 1 {
		t.Fatalf("leases of the networks %v", leases)
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/crisp")
	if len(groups) == 0 {
		groups = []string{"/sys/fs/cgroup/crisp"}
	}
	planted := []string{
		filepath.Join(n.state, "sandboxes", "0123"), filepath.Join(n.state, "netns", "crisp-0123"), filepath.Join(n.root, "containers", "0123"),
		filepath.Join(leases[0], "10.1.2.3"), filepath.Join(groups[0], "0123"), "/run/netns",
	}
	for _, path := range planted {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err = n.withoutPods()
	for _, path := range planted {
		if err == nil || !strings.Contains(err.Error(), path+"\n") && !strings.HasSuffix(err.Error(), path) {
			t.Errorf("%s was not found: %v", path, err)
		}
		os.Remove(path)
	}
	if lines := n.trouble(); len(lines) > 0 {
		t.Errorf("an undisturbed node has trouble: %v", lines)
	}
	log, err := os.OpenFile(n.log(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(log, `{"level":"ERROR","msg":"planted"}`)
	fmt.Fprintln(log, "panic: planted")
	fmt.Fprintln(log, "==================\nWARNING: DATA RACE planted\nRead at\n==================")
	fmt.Fprintln(log, `{"level":"ERROR","msg":"planted after it"}`)
	log.Close()
	if lines := n.trouble(); len(lines) != 4 || !strings.Contains(lines[2], "Read at") {
		t.Errorf("of four planted lines of trouble, these were found: %q", lines)
	}
	n.expects("planted")
}

// keepExecutorLog saves the executor's log before a wipe removes it.
func (n *node) keepExecutorLog() {
	kept, err := os.OpenFile(filepath.Join(n.dir, "executor.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer kept.Close()
	for _, name := range []string{"executor.log.1", "executor.log"} {
		if text, err := os.ReadFile(filepath.Join(n.state, name)); err == nil {
			kept.Write(text)
		}
	}
}

// removeCgroups removes empty cgroups in every hierarchy.
func removeCgroups(paths ...string) {
	for _, path := range paths {
		dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + path)
		for _, dir := range append(dirs, filepath.Join("/sys/fs/cgroup", path)) {
			os.Remove(dir)
		}
	}
}
