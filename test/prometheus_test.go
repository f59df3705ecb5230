package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// promtool accepts the metrics of crispd and the agent. In a real Prometheus, each query of the
// dashboard and the alerts in docs/examples returns something: a query that is valid, and has only
// existing metrics, may still match nothing.
func TestPrometheus(t *testing.T) {
	s := startScraped(t)
	s.l.run(t, "web", `
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: IMAGE
    args: [catch, http, ":80", hello, sleep, for-ever]
    readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}
    livenessProbe: {exec: {command: [/testbin, print, alive]}, periodSeconds: 1, timeoutSeconds: 10}
    resources: {limits: {memory: 64Mi, cpu: 500m}}
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		s.start(t)
		t.Run("scrapes", s.scrapes)
		t.Run("dashboard", s.dashboard)
		t.Run("alerts", s.alerts)
		t.Run("promtool", s.lint) // last, when all events have been counted
	})
}

// scraped is a node whose crispd and agent are scraped.
type scraped struct {
	l             *lab
	programs      string // directory of promtool and prometheus
	crispd, agent string // addresses
	prometheus    string // its URL
}

func startScraped(t *testing.T) *scraped {
	t.Helper()
	testenv.NeedRoot(t, "it runs containers")
	s := &scraped{programs: filepath.Dir(testenv.Program(t, "prometheus", "promtool")), crispd: testenv.FreePort(t), agent: testenv.FreePort(t)}
	n, _ := startNode(t, func(n *node, config string) error {
		text := withInit(fmt.Sprintf("[metrics]\naddress = %q\n", s.crispd))
		return errors.Join(n.useRegistry(newRegistry()), os.WriteFile(config, []byte(text), 0o644))
	})
	t.Cleanup(n.registry.close)
	image, err := bigImage(1)
	if err = errors.Join(err, n.push("app:latest", image)); err != nil {
		t.Fatal(err)
	}
	s.l = labOn(t, n, "--read-only-address", s.agent)
	return s
}

// endpoints returns the scraped URLs by job. The last one has cAdvisor's names and help texts, so
// that tools for kubelets work with it.
func (s *scraped) endpoints() map[string]string {
	return map[string]string{
		"crispd":         "http://" + s.crispd + "/metrics",
		"agent":          "http://" + s.agent + "/metrics",
		"agent-resource": "http://" + s.agent + "/metrics/resource",
		"agent-probes":   "http://" + s.agent + "/metrics/probes",
		"pods":           "http://" + s.agent + "/metrics/cadvisor",
	}
}

// lintOfKubelet lists the complaints of promtool that the kubelet's /metrics/cadvisor also gets:
// the names and types are cAdvisor's (its metrics/prometheus.go), and dashboards depend on them.
var lintOfKubelet = []string{
	`container_fs_inodes_total non-counter metrics should not have "_total" suffix`,
	`container_memory_failcnt counter metrics should have "_total" suffix`,
}

// lintFound is promtool's exit code if it could read the metrics and has complaints.
const lintFound = 3

// lint runs promtool on each endpoint.
func (s *scraped) lint(t *testing.T) {
	used := map[string]bool{}
	for name, url := range s.endpoints() {
		text := httpGet(t, url)
		if !strings.Contains(text, "\n# TYPE ") {
			t.Errorf("%s serves no metric: %s", url, text)
		}
		cmd := exec.Command(filepath.Join(s.programs, "promtool"), "check", "metrics")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(line)
			if allowed := name == "pods" && slices.Contains(lintOfKubelet, line); allowed {
				used[line] = true
			} else {
				t.Errorf("%s: %s", url, line)
			}
		}
		if code := cmd.ProcessState.ExitCode(); code != 0 && (code != lintFound || len(out) == 0) {
			t.Errorf("%s: promtool: %v\n%s", url, err, text)
		}
	}
	for _, line := range lintOfKubelet {
		if !used[line] {
			t.Errorf("promtool does not complain any more: %s", line)
		}
	}
}

// start starts a Prometheus that scrapes all endpoints each second, with the job names of the
// documents.
func (s *scraped) start(t *testing.T) {
	t.Helper()
	rules, err := filepath.Abs("../docs/examples/prometheus-crisp.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	dir, address := t.TempDir(), testenv.FreePort(t)
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%s]\nscrape_configs:\n", rules)
	for name, at := range s.endpoints() {
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		job := map[string]string{"crispd": "crisp", "agent": "crisp-agent"}[name]
		if job == "" {
			job = name
		}
		config += fmt.Sprintf("- {job_name: %s, metrics_path: %s, static_configs: [{targets: [%q]}]}\n", job, u.Path, u.Host)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	startPrometheus(t, s.programs, file, filepath.Join(dir, "data"), address)
	s.prometheus = "http://" + address
	s.l.until(func() bool {
		resp, err := http.Get(s.prometheus + "/-/ready")
		return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, "Prometheus is ready")
}

// startPrometheus starts a Prometheus that ends with the test. programs is its directory.
func startPrometheus(t *testing.T, programs, config, data, address string) {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(programs, "prometheus"), "--config.file="+config, "--storage.tsdb.path="+data, "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
		if err != nil || t.Failed() {
			t.Logf("prometheus: %v\n%s", err, log.String())
		}
	})
}

// ask sends a query to Prometheus' API, and decodes the data of the response into into.
func (s *scraped) ask(path string, params url.Values, into any) error {
	resp, err := http.Get(s.prometheus + path + "?" + params.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %s: %w", path, resp.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return nil
}

// scrapes checks that Prometheus accepts the metrics of each endpoint.
func (s *scraped) scrapes(t *testing.T) {
	var targets struct {
		ActiveTargets []struct{ ScrapeURL, Health, LastError string }
	}
	s.l.until(func() bool {
		err := s.ask("/api/v1/targets", nil, &targets)
		return err == nil && len(targets.ActiveTargets) == len(s.endpoints()) &&
			!slices.ContainsFunc(targets.ActiveTargets, func(a struct{ ScrapeURL, Health, LastError string }) bool { return a.Health == "unknown" })
	}, "Prometheus has scraped each endpoint")
	for _, a := range targets.ActiveTargets {
		if a.Health != "up" {
			t.Errorf("%s is %s: %s", a.ScrapeURL, a.Health, a.LastError)
		}
	}
}

// alerts checks that Prometheus can evaluate each alerting rule.
func (s *scraped) alerts(t *testing.T) {
	type rule struct{ Name, Health, LastError string }
	var all struct{ Groups []struct{ Rules []rule } }
	var rules []rule
	s.l.until(func() bool {
		if err := s.ask("/api/v1/rules", nil, &all); err != nil {
			return false
		}
		rules = nil
		for _, g := range all.Groups {
			rules = append(rules, g.Rules...)
		}
		return len(rules) > 0 && !slices.ContainsFunc(rules, func(r rule) bool { return r.Health == "unknown" })
	}, "Prometheus has evaluated each rule")
	for _, r := range rules {
		if r.Health != "ok" {
			t.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
		}
	}
}

// eventOf has the events that are necessary before a panel of the dashboard shows anything. All
// other panels show something once a pod is running.
var eventOf = map[string]func(s *scraped, t *testing.T){
	"Failed calls":                         (*scraped).failCall,
	"Abandoned calls":                      (*scraped).leave,
	"Pulls":                                (*scraped).pull,
	"Bytes pulled":                         (*scraped).pull,
	"Time to start a pod, 95th percentile": (*scraped).runPod, // the running one was started before the first scrape
	"Time in stages, average":              (*scraped).runPod,
}

// dashboard checks that each panel shows something and has the labels of its legend. It replaces
// the variables as Grafana does.
func (s *scraped) dashboard(t *testing.T) {
	var d struct {
		Templating struct {
			List []struct{ Name, AllValue string }
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(read(t, "../docs/examples/grafana-crisp.json"), &d); err != nil {
		t.Fatal(err)
	}
	// The variable's query is label_values(crisp_build_info, instance).
	var instances []string
	s.l.until(func() bool {
		err := s.ask("/api/v1/label/instance/values", url.Values{"match[]": {"crisp_build_info"}}, &instances)
		return err == nil && len(instances) > 0
	}, "there is a value for $instance")
	if !slices.Equal(instances, []string{s.crispd}) {
		t.Fatalf("$instance may be %q, want %q", instances, s.crispd)
	}
	seen := map[string]bool{}
	for _, p := range d.Panels {
		seen[p.Title] = true
		for _, target := range p.Targets {
			for _, instance := range []string{".*", strings.ReplaceAll(regexp.QuoteMeta(s.crispd), `\`, `\\`)} {
				query := strings.NewReplacer("$instance", instance, "$__rate_interval", "5m").Replace(target.Expr)
				if strings.Contains(query, "$") {
					t.Errorf("%s: a variable is unknown: %s", p.Title, query)
				}
				s.shows(t, p.Title, query, target.LegendFormat, eventOf[p.Title])
			}
		}
	}
	for title := range eventOf {
		if !seen[title] {
			t.Errorf("there is no panel %q", title)
		}
	}
}

var legendLabel = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)

// shows checks that the query of a panel has a value that can be drawn, and that all its series
// have the labels of the legend. It repeats the event, if there is one, until then.
func (s *scraped) shows(t *testing.T, panel, query, legend string, event func(*scraped, *testing.T)) {
	t.Helper()
	type series struct {
		Metric map[string]string
		Value  [2]any
	}
	var got struct{ Result []series }
	for deadline := time.Now().Add(untilTime); ; time.Sleep(time.Second) {
		if event != nil {
			event(s, t)
		}
		if err := s.ask("/api/v1/query", url.Values{"query": {query}}, &got); err != nil {
			t.Errorf("%s: %v: %s", panel, err, query)
			return
		}
		if slices.ContainsFunc(got.Result, func(r series) bool { return r.Value[1] != "NaN" }) {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("%s shows nothing: %s: %v", panel, query, got.Result)
			return
		}
	}
	for _, m := range legendLabel.FindAllStringSubmatch(legend, -1) {
		for _, r := range got.Result {
			if r.Metric[m[1]] == "" {
				t.Errorf("%s: the legend %s, but a series has only %v", panel, legend, r.Metric)
			}
		}
	}
}

func (s *scraped) failCall(t *testing.T) {
	t.Helper()
	if _, err := s.l.n.runtime().ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: "none"}); err == nil {
		t.Error("a container that is not there has a status")
	}
}

func (s *scraped) image() *cri.ImageSpec {
	return &cri.ImageSpec{Image: s.l.n.registry.host() + "/app:latest"}
}

// pull pulls an image that is not on the node.
func (s *scraped) pull(t *testing.T) {
	t.Helper()
	images := cri.NewImageServiceClient(s.l.n.conn)
	_, err := images.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: s.image()})
	if err == nil {
		_, err = images.PullImage(t.Context(), &cri.PullImageRequest{Image: s.image()})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// leave cancels a pull.
func (s *scraped) leave(t *testing.T) {
	t.Helper()
	r, images := s.l.n.registry, cri.NewImageServiceClient(s.l.n.conn)
	if _, err := images.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: s.image()}); err != nil {
		t.Fatal(err)
	}
	block := func(gate chan struct{}) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.gate = gate
	}
	gate := make(chan struct{})
	block(gate)
	defer func() { block(nil); close(gate) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := images.PullImage(ctx, &cri.PullImageRequest{Image: s.image()})
		done <- err
	}()
	s.l.until(func() bool { return strings.Contains(s.l.n.debug(t, "calls"), "PullImage") }, "the pull is under way")
	cancel()
	if err := <-done; err == nil {
		t.Error("the pull has ended before its client left")
	}
}

// runPod runs a pod of one container over CRI, and removes it.
func (s *scraped) runPod(t *testing.T) {
	t.Helper()
	n, ctx := s.l.n, t.Context()
	sandbox := n.run(t, ctx, "short")
	if err := n.createContainer(ctx, []string{"short", "app", "--", "testbin", "sleep", "for-ever"}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: n.ids["app"]}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.runtime().StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		t.Fatal(err)
	}
	n.remove(t, "short")
}

func httpGet(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v\n%s", url, resp.Status, err, body)
	}
	return string(body)
}
