package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/crisp-cri/crisp/test/testenv"
)

// mark begins the lines of the console that are shown outside.
const mark = "crisp-vm: "

// A guest is the node inside a boot, while a step runs.
type guest struct {
	ctx     context.Context
	payload string // mount point of the second disk
	logs    string
	bin     string // the installed programs in one directory, as the tests need them
	run     string // the user's -run
	boot    boot
	result  *result
}

func say(format string, args ...any) { fmt.Printf(mark+format+"\r\n", args...) }

// inside does the steps of the plan. Whatever happens, the results are on the third disk when it
// returns.
func inside(payload string) {
	logs, err := os.MkdirTemp("", "results-")
	if err != nil {
		say("%v", err)
		return
	}
	// The probes of test/testenv read the environment.
	for name, value := range map[string]string{"CRISP_DEB": payload + "/crisp.deb", "CRISP_NEXT_DEB": payload + "/next.deb"} {
		if _, err := os.Stat(value); err == nil {
			os.Setenv(name, value)
		}
	}
	if err := os.Chdir(filepath.Join(payload, "src")); err != nil {
		say("%v", err)
	}
	results := append(runPlan(payload, logs), readJournal(logs))
	data, err := json.MarshalIndent(results, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(logs, "results.json"), data, 0o644)
	}
	if err = errors.Join(err, pack(logs, "/dev/vdc")); err != nil {
		say("results: %v", err)
	}
}

func runPlan(payload, logs string) []result {
	var p plan
	data, err := os.ReadFile(filepath.Join(payload, "plan.json"))
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil {
		return []result{{Step: "plan", Err: err.Error()}}
	}
	uptime, _ := os.ReadFile("/proc/uptime")
	since, _, _ := strings.Cut(string(uptime), " ")
	say("the node is up after %s s", since)
	var results []result
	for _, b := range boots {
		for _, s := range b.steps {
			if b.name != p.Boot || !slices.Contains(p.Steps, s.name) {
				continue
			}
			say("step %s", s.name)
			r := result{Step: s.name}
			ctx, cancel := context.WithTimeout(context.Background(), s.limit)
			begin := time.Now()
			g := &guest{ctx: ctx, payload: payload, logs: logs, bin: "/var/tmp/bin", run: p.Run, boot: b, result: &r}
			if err := s.do.do(g); err != nil {
				r.Err = err.Error()
				if ctx.Err() != nil {
					r.Err = fmt.Sprintf("it took more than %v: %v", s.limit, err)
				}
				say("FAIL %s: %s", s.name, strings.ReplaceAll(r.Err, "\n", "\r\n"+mark))
			}
			cancel()
			r.Took = time.Since(begin)
			results = append(results, r)
		}
	}
	return results
}

// command runs a program; its output goes to the step's log, and each line to see, if that is not
// nil.
func (g *guest) command(dir string, env []string, see func(line string), name string, args ...string) error {
	log, err := os.OpenFile(filepath.Join(g.logs, g.result.Step+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(g.ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return errors.Join(err, r.Close(), w.Close())
	}
	w.Close()
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		lines := bufio.NewReader(io.TeeReader(r, log))
		for {
			line, err := lines.ReadString('\n')
			if see != nil && line != "" {
				see(strings.TrimRight(line, "\n"))
			}
			if err != nil {
				return
			}
		}
	}()
	err = cmd.Wait()
	// Processes that it has started may hold the pipe open.
	select {
	case <-seen:
	case <-time.After(5 * time.Second):
	}
	return errors.Join(err, r.Close())
}

// output runs a command and returns its output.
func (g *guest) output(name string, args ...string) (string, error) {
	var lines []string
	err := g.command("/", nil, func(l string) { lines = append(lines, l) }, name, args...)
	text := strings.Join(lines, "\n")
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, text)
	}
	return text, err
}

// install installs the package as a user would, and collects the programs for the tests, which
// start instances of their own.
func install(g *guest) error {
	if _, err := g.output("dpkg", "-i", filepath.Join(g.payload, "crisp.deb")); err != nil {
		return err
	}
	// A node needs an address. This link leads nowhere.
	for _, args := range []string{"link add node0 type dummy", "link set node0 arp on up", "address add 192.0.2.10/24 dev node0"} {
		if _, err := g.output("ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	if state, err := g.output("systemctl", "is-active", "crisp.service"); err != nil {
		status, _ := g.output("journalctl", "-u", "crisp.service", "--no-pager", "-n", "20")
		return fmt.Errorf("crisp.service is %s:\n%s", state, status)
	}
	text, err := g.output("crispd", "check")
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		say("  %s", strings.TrimRight(line, "\n"))
	}
	if err := os.MkdirAll(g.bin, 0o755); err != nil {
		return err
	}
	var programs []string
	for _, pattern := range []string{"/usr/bin/crisp*", "/usr/libexec/crisp/*", filepath.Join(g.payload, "bin/*")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		programs = append(programs, found...)
	}
	for _, path := range programs {
		if err := os.Symlink(path, filepath.Join(g.bin, filepath.Base(path))); err != nil {
			return err
		}
	}
	return nil
}

var verdict = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \((.*)\)$`)

// complaint is the number of lines that are shown of a failing test; the log has all.
const complaint = 20

func (t tests) do(g *guest) error {
	pattern := t.run
	if g.run != "" {
		pattern = g.run
	}
	limit := time.Minute
	if d, ok := g.ctx.Deadline(); ok {
		limit = time.Until(d) - 10*time.Second // so that a test that hangs prints its stacks
	}
	// Short: some hundred cases instead of thousands, which need no node.
	args := []string{"-test.v", "-test.short", "-test.timeout", limit.String(), "-test.run", pattern}
	if t.skip != "" {
		args = append(args, "-test.skip", t.skip)
	}
	dir := filepath.Join(g.payload, "src", t.dir)
	env := []string{"CRISP_BIN=" + g.bin, "CRISP_VM=1", "KUBELET=" + filepath.Join(g.payload, "bin/kubelet")}
	env = append(env, t.env...)
	var said []string // output of the test before its verdict
	var verdicts []testenv.Verdict
	err := g.command(dir, env, func(line string) {
		m := verdict.FindStringSubmatch(line)
		if m == nil {
			said = append(said[max(0, len(said)-complaint+1):], line)
			return
		}
		last := strings.TrimSpace(strings.Join(said[max(0, len(said)-1):], ""))
		verdicts = append(verdicts, testenv.Verdict{Dir: t.dir, Test: m[2], Action: strings.ToLower(m[1]), Said: last})
		switch m[1] {
		case "PASS":
			g.result.Passed++
		case "FAIL":
			g.result.Failed = append(g.result.Failed, m[2])
			for _, l := range said {
				say("    %.300s", l)
			}
		case "SKIP":
			g.result.Skipped = append(g.result.Skipped, m[2]+": "+last)
		}
		said = nil
		say("  %s %s %s", strings.ToLower(m[1]), m[2], m[3])
	}, filepath.Join(dir, "package.test"), args...)
	if err != nil {
		return fmt.Errorf("%s: %w: %s", t.dir, err, strings.Join(g.result.Failed, " "))
	}
	if g.result.Passed == 0 {
		return errors.New("no test ran")
	}
	if g.run != "" {
		t.must = nil
	}
	return t.missing(verdicts, pattern == "" && t.skip == "")
}

// missing returns the required tests that did not run. whole: all tests of the package were
// selected.
func (t tests) missing(verdicts []testenv.Verdict, whole bool) error {
	complaints, err := testenv.Judge(verdicts, whole, true)
	if err != nil {
		return err
	}
	for _, name := range t.must {
		i := slices.IndexFunc(verdicts, func(v testenv.Verdict) bool { return v.Test == name })
		switch {
		case i < 0:
			complaints = append(complaints, fmt.Sprintf("%s %s did not run: is it called so?", t.dir, name))
		case verdicts[i].Action == "skip":
			complaints = append(complaints, fmt.Sprintf("%s %s was skipped, and must run on this node: %s", t.dir, name, verdicts[i].Said))
		}
	}
	if len(complaints) > 0 {
		return errors.New(strings.Join(complaints, "\n"))
	}
	return nil
}

// has checks that the node satisfies the needs of the tests.
func has(g *guest) error {
	var errs []error
	for _, need := range g.boot.has {
		if why := testenv.Lacks(need); why != "" {
			errs = append(errs, fmt.Errorf("the node has no %s: %s", need, why))
		}
	}
	return errors.Join(errs...)
}

// conformance is critest, or its specs that match focus.
type conformance struct{ focus string }

// do runs critest with the images of the payload's registry.
func (c conformance) do(g *guest) error {
	program := filepath.Join(g.payload, "bin", "critest")
	if _, err := os.Stat(program); err != nil {
		g.result.Skipped = append(g.result.Skipped, "critest: it was not on PATH")
		return nil
	}
	stop, err := serveRegistry(filepath.Join(g.payload, "registry"))
	if err != nil {
		return err
	}
	defer stop()
	conf := filepath.Join(g.bin, "registries.conf")
	if err := os.WriteFile(conf, []byte(registriesConf()), 0o644); err != nil {
		return err
	}
	path := filepath.Join(g.payload, "bin") + ":" + os.Getenv("PATH")
	args := []string{"test/conformance/critest.sh", g.bin, "-ginkgo.no-color", "-ginkgo.v"}
	focus := c.focus
	if g.run != "" {
		focus = g.run
	}
	if focus != "" {
		args = append(args, "-ginkgo.focus", focus)
	}
	err = g.command(filepath.Join(g.payload, "src"), []string{"PATH=" + path, "CONTAINERS_REGISTRIES_CONF=" + conf}, func(line string) {
		switch m := ginkgoSummary.FindStringSubmatch(line); {
		case m != nil:
			g.result.Passed, _ = strconv.Atoi(m[1])
			say("  %s", line)
		case strings.HasPrefix(line, "[FAIL]"):
			g.result.Failed = append(g.result.Failed, line)
			say("  %s", line)
		}
	}, "bash", args...)
	if err == nil && g.result.Passed == 0 {
		err = errors.New("no spec ran")
	}
	return err
}

var ginkgoSummary = regexp.MustCompile(`(\d+) Passed \| (\d+) Failed`)
