package kubelet

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// metricsPods differ in what monitoring distinguishes: two containers with limits, the host's
// network, a shared PID namespace. Each writes to a disk, so that all have disk counters.
var metricsPods = map[string]string{
	"plain": `
  containers:
  - {name: web, image: IMAGE, imagePullPolicy: Never, args: [write, /file, text, catch, sleep, for-ever], resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {cpu: 500m, memory: 64Mi}}}
  - {name: side, image: IMAGE, imagePullPolicy: Never, args: [write, /file, text, catch, sleep, for-ever]}
`,
	"host": `
  hostNetwork: true
  containers: [{name: web, image: IMAGE, imagePullPolicy: Never, args: [write, /file, text, catch, sleep, for-ever]}]
`,
	"shared": `
  shareProcessNamespace: true
  containers: [{name: web, image: IMAGE, imagePullPolicy: Never, args: [write, /file, text, catch, sleep, for-ever]}]
`,
}

// fromCRI makes the kubelet query CRI for what cAdvisor otherwise measures.
const fromCRI = "--feature-gates=PodAndContainerStatsFromCRI=true"

// runs lists the compared nodes; each is compared with the last one.
var runs = []string{"crisp", "crisp-cri", "containerd"}

// The kubelet's metrics and statistics of pods on crisp equal those on containerd, name by name and
// label by label, except for the rows of the tables in docs/metrics.md: with the default feature
// gates, where cAdvisor queries crispd like containerd, and with PodAndContainerStatsFromCRI, where
// cAdvisor is not used. VIEWS is a directory that keeps the results for a later run.
func TestMetrics(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it runs containers")
	}
	if _, err := os.Stat(kubeletProgram()); err != nil {
		t.Skipf("the kubelet is not built (%v): make test-kubelet", err)
	}
	views := map[string][]string{}
	if dir := os.Getenv("VIEWS"); dir != "" { // results of an earlier run
		for _, name := range runs {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				views[name] = strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
			}
		}
	}
	for _, name := range runs {
		if views[name] != nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "kubelet")
			switch name {
			case "crisp":
				n.startCrispd()
				n.flags = []string{"--containerd=" + filepath.Join(n.dir, "run", "cadvisor.sock")}
			case "crisp-cri":
				n.startCrispd()
				n.flags = []string{"--containerd=" + filepath.Join(n.dir, "none.sock"), fromCRI}
			case "containerd":
				n.startContainerd()
				n.flags = []string{"--containerd=" + filepath.Join(n.dir, "containerd.sock")}
			}
			n.drive()
			views[name] = n.shown()
			if dir := os.Getenv("VIEWS"); dir != "" {
				check(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(views[name], "\n")+"\n"), 0o644))
			}
		})
	}
	for _, name := range []string{"crisp", "crisp-cri"} {
		if views[name] == nil || views["containerd"] == nil {
			continue // not run, or failed
		}
		lines := differences(views[name], views["containerd"])
		t.Logf("%s: %d lines, containerd %d, %d differ", name, len(views[name]), len(views["containerd"]), len(lines))
		explained(t, name, cgroupsOf(views["containerd"]), lines)
	}
}

// shown runs the pods and returns what the kubelet reports of them once that stops changing: it
// samples containers about every ten seconds.
func (n *node) shown() (lines []string) {
	n.t.Helper()
	all := slices.Sorted(maps.Keys(metricsPods))
	for _, name := range all {
		n.runMetricsPod(name)
	}
	if !slices.Contains(n.flags, fromCRI) {
		n.named()
	}
	same, began := 0, time.Now()
	n.until("what is shown has settled", 5*time.Minute, func() bool {
		time.Sleep(5 * time.Second)
		now, err := n.see()
		if err != nil { // cAdvisor on a slow machine may not have measured the disks in time
			n.t.Log(err)
		}
		if err == nil && slices.Equal(now, lines) {
			same++
		} else {
			same = 0
		}
		lines = now
		return same >= 6 && time.Since(began) > 90*time.Second+slowness*15*time.Second
	})
	n.endMetricsPods(all...)
	return lines
}

// named waits until cAdvisor has identified all containers and sandboxes of the pods. cAdvisor
// gives a runtime two seconds to answer, and otherwise takes a cgroup for an unknown one until the
// kubelet ends. On an emulated machine any runtime may be too slow, so there the kubelet is
// restarted a few times.
func (n *node) named() {
	n.t.Helper()
	want := []string{"host container web", "host sandbox", "plain container side", "plain container web", "plain sandbox", "shared container web", "shared sandbox"}
	for again := 0; ; again++ {
		var missing []string
		if n.waits(30*time.Second, func() bool {
			lines, err := n.see()
			missing = slices.DeleteFunc(slices.Clone(want), func(of string) bool { return slices.Contains(lines, of+` name="ID"`) })
			return err == nil && len(missing) == 0
		}) {
			return
		}
		if slowness == 1 || again == 4 {
			n.t.Fatalf("cAdvisor does not know %q", missing)
		}
		n.t.Logf("cAdvisor does not know %q: the kubelet is started again", missing)
		n.stop("kubelet")
		n.startKubelet(n.ports)
		n.until("the driver lists pods", time.Minute, func() bool { _, err := n.list(); return err == nil })
	}
}

// runMetricsPod runs one of metricsPods until it is ready.
func (n *node) runMetricsPod(name string) {
	n.t.Helper()
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  terminationGracePeriodSeconds: 1" + strings.ReplaceAll(metricsPods[name], "IMAGE", testImage)
	hidden := filepath.Join(n.dir, name+".yaml")
	check(n.t, os.WriteFile(hidden, []byte(text), 0o644))
	check(n.t, os.Rename(hidden, filepath.Join(n.dir, "manifests", name+".yaml")))
	n.until(name+" is ready", patience, func() bool {
		p, err := n.pod(name)
		return err == nil && p != nil && reached("ready", &p.Status)
	})
}

func (n *node) endMetricsPods(names ...string) {
	n.t.Helper()
	for _, name := range names {
		check(n.t, os.Remove(filepath.Join(n.dir, "manifests", name+".yaml")))
	}
	n.until("all sandboxes are removed", 4*time.Minute, func() bool {
		left, err := n.sandboxes("", false)
		return err == nil && len(left) == 0
	})
}

// see returns the series and fields that the kubelet reports of the pods, as sorted lines.
func (n *node) see() ([]string, error) {
	lines := map[string]bool{}
	series, err := n.fetch("/metrics/cadvisor")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(series)) {
		for _, l := range seriesLines(line) {
			lines[l] = true
		}
	}
	var summary struct {
		Pods []map[string]any `json:"pods"`
	}
	fields, err := n.fetch("/stats/summary")
	if err == nil {
		err = json.Unmarshal(fields, &summary)
	}
	if err != nil {
		return nil, err
	}
	for _, pod := range summary.Pods {
		ref, _ := pod["podRef"].(map[string]any)
		name := strings.TrimSuffix(fmt.Sprint(ref["name"]), "-"+nodeName)
		if _, ours := metricsPods[name]; ours {
			delete(pod, "podRef")
			if network, ok := pod["network"].(map[string]any); ok && name == "host" && network["interfaces"] != nil {
				network["interfaces"] = "…"
			}
			fieldLines(name+" summary ", pod, lines)
		}
	}
	return slices.Sorted(maps.Keys(lines)), nil
}

// fetch returns the driver's response for path.
func (n *node) fetch(path string) ([]byte, error) {
	client := http.Client{Timeout: slowness * 10 * time.Second}
	resp, err := client.Get(strings.TrimSuffix(n.pods, "/pods") + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, resp.Status, data)
	}
	return data, err
}

var (
	sampleForm = regexp.MustCompile(`^(\w+)\{(.*)\} `)
	labelForm  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	hexForm    = regexp.MustCompile(`[0-9a-f]{64}`)
	uidForm    = regexp.MustCompile(`pod[0-9a-f_-]{32,36}`)
)

// seriesLines returns the lines for a sample of one of the pods: its series, and each label that
// identifies it. They leave out the machine's block devices and interfaces.
func seriesLines(sample string) []string {
	m := sampleForm.FindStringSubmatch(sample)
	if m == nil {
		return nil
	}
	labels := map[string]string{}
	for _, l := range labelForm.FindAllStringSubmatch(m[2], -1) {
		labels[l[1]] = l[2]
	}
	pod := strings.TrimSuffix(labels["pod"], "-"+nodeName)
	if _, ours := metricsPods[pod]; !ours {
		return nil
	}
	of := pod + " pod"
	if labels["container"] != "" {
		of = pod + " container " + labels["container"]
	} else if labels["name"] != "" {
		of = pod + " sandbox"
	}
	id := uidForm.ReplaceAllString(hexForm.ReplaceAllString(labels["id"], "ID"), "podUID")
	labels["name"] = hexForm.ReplaceAllString(labels["name"], "ID")
	lines := []string{of + ` id="` + id + `"`}
	for _, name := range []string{"name", "image", "namespace"} {
		lines = append(lines, of+" "+name+`="`+labels[name]+`"`)
	}
	for _, name := range []string{"pod", "container", "id", "name", "image", "namespace"} {
		delete(labels, name)
	}
	for _, name := range []string{"device", "major", "minor"} {
		if labels[name] != "" {
			labels[name] = "…"
		}
	}
	if pod == "host" && labels["interface"] != "" {
		labels["interface"] = "…"
	}
	var rest []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		rest = append(rest, name+`="`+labels[name]+`"`)
	}
	return append(lines, of+" "+m[1]+"{"+strings.Join(rest, ",")+"}")
}

// fieldLines adds the path of each value below v to lines. Elements of lists are identified by
// their names.
func fieldLines(path string, v any, lines map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, field := range v {
			fieldLines(path+"."+name, field, lines)
		}
	case []any:
		for _, e := range v {
			name := "?"
			if fields, ok := e.(map[string]any); ok {
				name = fmt.Sprint(fields["name"])
			}
			fieldLines(path+"["+name+"]", e, lines)
		}
	default:
		lines[path] = true
	}
}

// differences returns the lines that are in only one of the lists.
func differences(crisp, containerd []string) (lines []string) {
	for _, line := range crisp {
		if !slices.Contains(containerd, line) {
			lines = append(lines, "only crisp: "+line)
		}
	}
	for _, line := range containerd {
		if !slices.Contains(crisp, line) {
			lines = append(lines, "only containerd: "+line)
		}
	}
	return lines
}

// cgroupsOf returns the cgroup version of a view, as the tables call it. The cgroups of v2 are
// systemd's.
func cgroupsOf(view []string) string {
	if slices.ContainsFunc(view, func(line string) bool { return strings.Contains(line, ".slice/") }) {
		return "v2"
	}
	return "v1"
}

// explained fails for each difference without a row in the table below that run's heading in
// docs/metrics.md, and for each row without a difference. A row begins with a regular expression
// for whole lines. A row that need not match says "sometimes"; one for a single cgroup version
// begins with "v1: " or "v2: ".
func explained(t *testing.T, run, cgroups string, lines []string) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/metrics.md")
	check(t, err)
	_, section, found := strings.Cut(string(doc), "<!-- "+run+" -->")
	if !found {
		t.Fatalf("docs/metrics.md has no table of %s", run)
	}
	section, _, _ = strings.Cut(section, "<!-- end -->")
	used := map[string]int{}
	var rows []string
	for line := range strings.Lines(section) {
		m := regexp.MustCompile("^\\| `([^`]+)` \\| (?:(v[12]): )?").FindStringSubmatch(line)
		if m != nil && (m[2] == "" || m[2] == cgroups) {
			rows = append(rows, strings.ReplaceAll(m[1], `\|`, "|"))
			if strings.Contains(line, "sometimes") {
				used[rows[len(rows)-1]]++
			}
		}
	}
lines:
	for _, line := range lines {
		for _, row := range rows {
			if regexp.MustCompile("^(?:" + row + ")$").MatchString(line) {
				used[row]++
				continue lines
			}
		}
		t.Errorf("%s: not explained in docs/metrics.md: %s", run, line)
	}
	for _, row := range rows {
		if used[row] == 0 {
			t.Errorf("%s: nothing differs as docs/metrics.md says: %s", run, row)
		}
	}
}
