package archtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// budgets bound the lines of each product: of its Go files without tests, with comments and
// blanks. Whoever operates, audits or changes a product reads about that much. Raising one is a
// commit of its own that says what users get for it; README shows them.
var budgets = []struct {
	product string
	roots   []string // directories; a package of internal counts for the first product that links it
	lines   int
	why     string
}{
	// 58 500 without containers of other runtimes' shims: gVisor, Kata, WebAssembly; 63 700 without the
	// checkpoints that shims make, and the bound of the heap; 64 300 without crispd for one
	// user; 64 600 without cgroups made beside the fork, and removals that wait for no disk; 64 630
	// without sandboxes that a shim makes by the Sandbox API; 64 980 without networks and
	// host ports of that user's pods; 65 730 without pulls that give way to pods;
	// 65 860 without logs that keep to their limit at any moment; 66 080 without shared PID namespaces,
	// IPv6 and images with owners of others for that user; 66 140 without limits of
	// resources for that user; 66 360 without pods that start as fast among a thousand as among ten;
	// 66 425 without an end of hooks that fork meanwhile, and IPv6 in bursts of pods.
	{
		"runtime", []string{"server", "oci", "image", "network", "streaming", "checkpoint", "config", "cmd/crispd", "cmd/crisp-executor", "cmd/crisp-bridge"},
		66_460, "two thirds of what containerd or CRI-O need for CRI, with runc's share",
	},
	// 20 000 without package logread, by which logs are read across rotated and compressed files; the
	// kubelet reads the last file only; and without what keeps pods over a new host name, and ends
	// them in order at a shutdown. 21 400 without name servers that follow the node's, and the line of
	// a wrong indent; 21 530 without names of pods and Services, devices without privilege, and what
	// CronJobs mean; 22 225 without newer images of pods that ask for them, and the way back; 22 815
	// without what StatefulSets and their claims mean.
	{"agent", []string{"agent"}, 22_905, "a third of the kubelet's for the same; it runs pods, and nothing else"},
	// 9 000 without the reasons of crashes: code, signal, limit, next try, last line of the log; 9 100
	// without what helps against them; 9 145 without Services and CronJobs; 9 295
	// without a page that shows the node and broken manifests; 9 400 without StatefulSets: databases
	// whose manifests run as they are.
	{"apiserver", []string{"apiserver"}, 9_505, "what kubectl and a browser need of one node"},
	// 6 500 without the kubelet's own flags and KubeletConfiguration, by which a node's settings
	// move to the agent as they are, and the reasons for which "crisp run" ends at once; 7 150
	// without its devices; 7 175 without answers to small mistakes, and Deployments in brief; 7 235
	// without the agent of an ordinary user; 7 285 without a doctor that knows what crispd will do.
	{"crisp", []string{"cmd/crisp"}, 7_295, "a command line that only speaks to the API"},
}

func TestBudgets(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := linesOfDirs(t)
	counted := map[string]bool{}
	for _, b := range budgets {
		total := 0
		for _, dir := range linked(t, b.roots) {
			ofProduct := belowAny(dir, b.roots) || below(dir, "internal")
			if ofProduct && !counted[dir] {
				counted[dir] = true
				total += lines[dir]
			}
		}
		t.Logf("%s: %d lines of %d", b.product, total, b.lines)
		if total > b.lines {
			t.Errorf("%s has %d lines, more than its budget of %d (%s)", b.product, total, b.lines, b.why)
		}
		if total < b.lines/2 {
			t.Errorf("%s has only %d lines: is this the product?", b.product, total)
		}
		shown := fmt.Sprintf("%d %03d", b.lines/1000, b.lines%1000)
		if !bytes.Contains(readme, []byte(shown)) {
			t.Errorf("README.md does not show the budget of %s, %s lines", b.product, shown)
		}
	}
	for dir := range lines {
		if !counted[dir] && !below(dir, "test") && !below(dir, "packaging") && !below(dir, "docs") {
			t.Errorf("%s counts for no product", dir)
		}
	}
}

// linesOfDirs returns the lines of the Go files in each directory, without tests.
func linesOfDirs(t *testing.T) map[string]int {
	lines := map[string]int{}
	for _, f := range tree(t) {
		if !f.test {
			lines[f.dir] += fset.File(f.ast.FileStart).LineCount() - 1
		}
	}
	return lines
}

// linked returns the directories of this module's packages that those below roots link, sorted.
func linked(t *testing.T, roots []string) (dirs []string) {
	args := []string{"list", "-deps", "-tags", "seccomp isal"}
	for _, root := range roots {
		args = append(args, "./"+root+"/...")
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join("..", "..")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	for _, path := range strings.Fields(string(out)) {
		if dir, ours := strings.CutPrefix(path, module+"/"); ours {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}
