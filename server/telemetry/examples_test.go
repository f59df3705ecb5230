package telemetry_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/telemetry"
	"github.com/crisp-cri/crisp/test/testenv"
)

const examples = "../../docs/examples/"

// scrapedLabels returns the labels of each metric that crispd serves, including those that
// Prometheus adds.
func scrapedLabels(t *testing.T) map[string]map[string]bool {
	t.Helper()
	tel := newTelemetry(t)
	tel.Watch(func() telemetry.State {
		return telemetry.State{
			Containers: map[string]int{"running": 1}, Sandboxes: map[string]int{"ready": 1},
			Pulls: []pulls.Pull{{Image: "web:1", AllKnown: true}},
		}
	}, thisProcess)
	ctx, call := tel.Begin(t.Context(), "PullImage", telemetry.Pod{})
	stage.Next(ctx, "layers")
	call.End(telemetry.Outcome{Code: "OK", Err: errors.New("x"), Result: "success", Left: true})
	all := map[string]map[string]bool{"up": {"job": true, "instance": true}}
	for _, m := range regexp.MustCompile(`(?m)^([a-z]\w*)(?:\{(.*)\})? `).FindAllStringSubmatch(scrape(tel), -1) {
		labels := map[string]bool{"job": true, "instance": true}
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(m[2], -1) {
			labels[l[1]] = true
		}
		all[m[1]] = labels
	}
	return all
}

var (
	selector  = regexp.MustCompile(`\b((?:crisp|go|process)_\w+|up)\b(?:\{([^}]*)\})?`)
	matcher   = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	groupedBy = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// checkQuery fails for a metric, a label or a state in a query that does not exist.
func checkQuery(t *testing.T, of, query string, served map[string]map[string]bool) (metrics []string) {
	t.Helper()
	labels := map[string]bool{} // of all metrics in the query
	for _, m := range selector.FindAllStringSubmatch(query, -1) {
		has, ok := served[m[1]]
		if !ok {
			t.Errorf("%s: there is no metric %s", of, m[1])
			continue
		}
		metrics = append(metrics, m[1])
		maps.Copy(labels, has)
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !has[l[1]] {
				t.Errorf("%s: %s has no label %s", of, m[1], l[1])
			}
			if l[1] == "state" && !slices.Contains(states(m[1]), l[3]) {
				t.Errorf("%s: %s has no state %s", of, m[1], l[3])
			}
		}
	}
	for _, by := range groupedBy.FindAllStringSubmatch(query, -1) {
		for _, label := range strings.Split(by[1], ",") {
			if !labels[strings.TrimSpace(label)] {
				t.Errorf("%s: by %s, which no metric of it has", of, label)
			}
		}
	}
	return metrics
}

func states(metric string) (names []string) {
	if metric == "crisp_containers" {
		for s := oci.Created; s <= oci.Removing; s++ {
			names = append(names, s.String())
		}
	} else {
		for s := oci.SandboxReady; s <= oci.SandboxRemoving; s++ {
			names = append(names, s.String())
		}
	}
	return names
}

// A panel with a metric that does not exist is empty, without an error.
func TestDashboard(t *testing.T) {
	data, err := os.ReadFile(examples + "grafana-crisp.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard grafanaDashboard
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	served, shown := scrapedLabels(t), map[string]bool{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			for _, name := range checkQuery(t, p.Title, target.Expr, served) {
				shown[family(name)] = true
			}
		}
	}
	for name := range served {
		name := family(name)
		running := strings.HasPrefix(name, "crisp_image_pull_") // there is nothing to show at most times
		if isOwn(name) && !shown[name] && !running && name != "crisp_event_subscribers_dropped_total" {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// family returns the metric to which a series of a histogram belongs.
func family(series string) string {
	for _, end := range []string{"_bucket", "_sum", "_count"} {
		series = strings.TrimSuffix(series, end)
	}
	return series
}

// An alert on a metric that does not exist never fires.
func TestAlerts(t *testing.T) {
	data, err := os.ReadFile(examples + "prometheus-crisp.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	served, rules := scrapedLabels(t), 0
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			rules++
			if len(checkQuery(t, rule.Alert, rule.Expr, served)) == 0 {
				t.Errorf("%s is of no metric", rule.Alert)
			}
			for _, name := range []string{"summary", "reason", "look"} {
				if rule.Annotations[name] == "" {
					t.Errorf("%s has no %s", rule.Alert, name)
				}
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) {
				t.Errorf("%s has the severity %q", rule.Alert, rule.Labels["severity"])
			}
		}
	}
	if rules < 10 {
		t.Errorf("%d rules: are these the alerts?", rules)
	}
}

// isOwn reports whether a metric is crisp's, and not from Prometheus' library.
func isOwn(name string) bool {
	return strings.HasPrefix(name, "crisp_") && !strings.HasPrefix(name, "crisp_executor_process_")
}

// docs/metrics.md lists exactly crisp's metrics.
func TestListOfMetrics(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, own, _ := strings.Cut(string(doc), "## crisp's own")
	listed, served := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile("`(crisp_\\w+)`").FindAllStringSubmatch(own, -1) {
		listed[m[1]] = true
	}
	for name := range scrapedLabels(t) {
		if isOwn(name) {
			served[family(name)] = true
		}
	}
	if !maps.Equal(listed, served) {
		t.Errorf("listed are %v, served %v", slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(served)))
	}
}

// Prometheus' own tool accepts the rules and the metrics.
func TestPromtool(t *testing.T) {
	promtool := testenv.Program(t, "prometheus", "promtool")
	if out, err := exec.Command(promtool, "check", "rules", examples+"prometheus-crisp.rules.yml").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(scrape(newTelemetry(t)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
