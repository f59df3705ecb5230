package test

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/crisp-cri/crisp/test/testenv"
)

// The commands of docs/quickstart.md work in order, as a reader types them. A block with output
// shows that of the last command before it. Commands for packages and services are replaced,
// because they would change the machine (machine).
func TestQuickstart(t *testing.T) { runQuickstart(t, nil) }

// They work for an ordinary user who types what docs/rootless.md says instead.
func TestQuickstartByUser(t *testing.T) {
	testenv.Need(t, "slirp4netns")
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (?:`([^`]+)`|nothing) \\|$").FindAllStringSubmatch(string(read(t, "../docs/rootless.md")), -1)
	if len(rows) < 4 {
		t.Fatalf("docs/rootless.md has %d rows of what to type", len(rows))
	}
	runQuickstart(t, rows)
}

// runQuickstart does the steps, with the replacements of an ordinary user.
func runQuickstart(t *testing.T, rows [][]string) {
	steps, err := readSteps("../docs/quickstart.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) < 20 {
		t.Fatalf("only %d commands: is this the document?", len(steps))
	}
	q := newQuickstart(t, rows)
	for _, s := range steps {
		q.step(s)
		if t.Failed() {
			return
		}
	}
}

// A quickStep is a command of the document.
type quickStep struct {
	line    int // in the document
	command string
	prints  []string // lines of output, "…" is anything; nil if the document has none
}

// readSteps returns the commands of a document's sh blocks. A text block is the output of
// the command before it.
func readSteps(path string) ([]quickStep, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var steps []quickStep
	block, end := "", ""
	for i, line := range strings.Split(string(data), "\n") {
		switch language, fence := strings.CutPrefix(line, "```"); {
		case fence && end != "":
			return nil, fmt.Errorf("%s:%d: no %s before the end of the block", path, i+1, end)
		case fence && block != "":
			block = ""
		case fence && language != "sh" && language != "text":
			return nil, fmt.Errorf("%s:%d: a block of %q is neither run nor compared", path, i+1, language)
		case fence:
			block = language
		case block == "text":
			last := &steps[len(steps)-1]
			last.prints = append(last.prints, line)
		case block == "sh" && end != "":
			steps[len(steps)-1].command += "\n" + line
			if line == end {
				end = ""
			}
		case block == "sh":
			steps = append(steps, quickStep{line: i + 1, command: line})
			if _, word, here := strings.Cut(line, "<<'"); here {
				end = strings.TrimSuffix(word, "'")
			}
		case strings.HasPrefix(line, "    "):
			return nil, fmt.Errorf("%s:%d: an indented block is not run", path, i+1)
		}
	}
	return steps, nil
}

// A quickstart is the reader's machine, with crisp.
type quickstart struct {
	*testing.T
	agent      *agentProcess
	etc, work  string
	rows       [][]string // what an ordinary user types instead, or nil
	busybox    string
	prometheus string // directory of its programs
}

func newQuickstart(t *testing.T, rows [][]string) *quickstart {
	testenv.NeedRoot(t, "it runs containers")
	q := &quickstart{T: t, work: t.TempDir(), rows: rows}
	q.busybox = testenv.Program(t, "busybox-static", "busybox")
	if f, err := elf.Open(q.busybox); err != nil {
		t.Fatal(err)
	} else if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) > 0 || f.Close() != nil {
		t.Skipf("needs a busybox that is linked statically: %s wants %v, %v", q.busybox, libraries, err)
	}
	q.prometheus = filepath.Dir(testenv.Program(t, "prometheus", "promtool"))
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl")
	}
	n, _ := startNode(t, q.prepare)
	q.agent = &agentProcess{t: t, n: n, manifests: filepath.Join(q.etc, "crisp/pods")}
	return q
}

// prepare does what packages would do: it makes directories, and Prometheus's configuration. A
// registry on loopback stands in for Docker's.
func (q *quickstart) prepare(n *node, _ string) error {
	q.etc = filepath.Join(n.dir, "etc")
	host := "127.0.0.1"
	if q.rows != nil { // whose crispd does not reach that
		q.work, q.etc, host = filepath.Join(n.dir, "home"), filepath.Join(n.dir, "home/.config"), "192.0.2.7"
		if out, err := exec.Command("ip", "addr", "add", host+"/32", "dev", "lo").CombinedOutput(); err != nil {
			return fmt.Errorf("ip addr add: %w: %s", err, out)
		}
		q.Cleanup(func() { exec.Command("ip", "addr", "del", host+"/32", "dev", "lo").Run() })
		if err := n.byUser(hostUser, "network"); err != nil {
			return err
		}
	}
	for _, dir := range []string{"crisp/pods", "prometheus", "systemd/system", "systemd/user"} {
		if err := os.MkdirAll(filepath.Join(q.etc, dir), 0o755); err != nil {
			return err
		}
	}
	config, err := os.ReadFile(filepath.Join(q.prometheus, "../../etc/prometheus/prometheus.yml"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(q.etc, "prometheus/prometheus.yml"), config, 0o644); err != nil {
		return err
	}
	if n.registry, err = newRegistryAt(host + ":0"); err != nil {
		return err
	}
	q.Cleanup(n.registry.close)
	image, err := busyboxImage(q.busybox)
	if err != nil {
		return err
	}
	for _, tag := range []string{"1.36.1", "1.37.0"} {
		if err := n.push("library/busybox:"+tag, image); err != nil {
			return err
		}
	}
	conf := fmt.Sprintf("[[registry]]\nlocation = \"docker.io\"\nblocked = false\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", n.registry.host())
	out, err := exec.Command("chown", "-R", fmt.Sprintf("%[1]d:%[1]d", n.owner), n.dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("chown: %w: %s", err, out)
	}
	return os.WriteFile(filepath.Join(n.dir, "registries.conf"), []byte(conf), 0o644)
}

// busyboxImage returns an image with the parts of Docker's busybox that the document needs.
func busyboxImage(program string) (v1.Image, error) {
	data, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	headers := []*tar.Header{{Name: "bin/busybox", Mode: 0o755, Typeflag: tar.TypeReg}}
	for _, applet := range []string{"sh", "ls", "httpd", "cat", "wget"} {
		headers = append(headers, &tar.Header{Name: "bin/" + applet, Linkname: "busybox", Typeflag: tar.TypeSymlink})
	}
	l, err := layer(headers, [][]byte{data, nil, nil, nil, nil, nil})
	if err != nil {
		return nil, err
	}
	image, err := imageOf(l)
	if err != nil {
		return nil, err
	}
	return mutate.Config(image, v1.Config{Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}})
}

// looks matches read-only commands, whose output may take a while to appear.
var looks = regexp.MustCompile(`^(curl|crisp exec|crisp (get|why|status|logs|events|top)|promtool) `)

// step runs a command, and repeats it until it prints the expected output.
func (q *quickstart) step(s quickStep) {
	q.Helper()
	if q.rows != nil && regexp.MustCompile(`gvisor|runsc|container_memory`).MatchString(s.command) {
		q.Logf("not run: %s: docs/rootless.md leaves it out", s.command)
		return
	}
	if q.machine(s) {
		return
	}
	for _, row := range q.rows {
		from := strings.ReplaceAll(regexp.QuoteMeta(row[1]), "POD", `(web-\d)`)
		s.command = regexp.MustCompile(from).ReplaceAllString(s.command, strings.ReplaceAll(row[2], "POD", "$1"))
	}
	want := regexp.MustCompile(printed(s.prints))
	for deadline := time.Now().Add(untilTime); ; time.Sleep(200 * time.Millisecond) {
		out, err := q.sh(s.command)
		out = strings.TrimSpace(out) + "\n"
		if err == nil && (s.prints == nil || want.MatchString(out)) {
			q.Logf("$ %s\n%s", s.command, out)
			return
		}
		if !looks.MatchString(s.command) || s.prints == nil || time.Now().After(deadline) {
			q.Errorf("quickstart.md:%d: %s\nprints\n%s%v, want\n%s", s.line, s.command, out, err, strings.Join(s.prints, "\n"))
			return
		}
	}
}

// printed returns a regular expression for the output of a command: these lines, where … is
// anything, and on a line of its own any number of lines. The width of columns does not
// matter.
func printed(lines []string) string {
	var b strings.Builder
	b.WriteString(`^`)
	for _, line := range lines {
		if line == "…" {
			b.WriteString(`(?:.*\n)*`)
			continue
		}
		for i, part := range strings.Split(line, "…") {
			if i > 0 {
				b.WriteString(`.*`)
			}
			b.WriteString(regexp.QuoteMeta(part))
		}
		b.WriteString(`\s*\n`)
	}
	b.WriteString(`$`)
	return b.String()
}

// sh runs a command as the reader would, with the paths of this instance.
func (q *quickstart) sh(command string) (string, error) {
	ctx, cancel := context.WithTimeout(q.Context(), untilTime)
	defer cancel()
	n := q.agent.n
	paths := strings.NewReplacer("> /etc/", "> "+q.etc+"/", "mkdir -p /etc/", "mkdir -p "+q.etc+"/", "config /etc/", "config "+q.etc+"/")
	cmd := exec.CommandContext(ctx, "bash", "-e", "-o", "pipefail", "-c", paths.Replace(command))
	cmd.Dir = q.work
	cmd.Env = append(os.Environ(), append(n.agentEnv(), "PATH="+n.binaries.dir+":"+q.prometheus+":"+os.Getenv("PATH"))...)
	if q.rows != nil {
		n.manage(cmd)
		cmd.Env, cmd.Dir = append(cmd.Env, "HOME="+q.work), q.work
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// machine replaces the commands that would change the machine: packages are installed, and
// services are processes of the test. It reports whether the command is one of them.
func (q *quickstart) machine(s quickStep) bool {
	q.Helper()
	n := q.agent.n
	switch words := strings.Fields(s.command); {
	case strings.Contains(s.command, "gvisor") && testenv.Lacks("gvisor") != "":
		q.Logf("not run: %s: %s", s.command, testenv.Lacks("gvisor"))
	case strings.Contains(s.command, "/usr/local/bin/runsc"):
		text := strings.ReplaceAll(strings.Join(strings.Split(s.command, "\n")[1:2], ""), "/usr/local/bin", testenv.Shims()) + fmt.Sprintf("\nroot = %q\n", filepath.Join(n.dir, "runsc"))
		if err := os.WriteFile(filepath.Join(q.etc, "crisp/runsc.toml"), []byte(text), 0o644); err != nil {
			q.Fatal(err)
		}
		n.hasGVisor(q.T, filepath.Join(n.dir, "runsc"))
	case words[0] == "apt-get":
		q.Logf("not run: %s: it changes the machine", s.command)
	case words[0] != "systemctl":
		return false
	case s.command == "systemctl daemon-reload":
	case s.command == "systemctl enable --now crisp-agent":
		q.startAgent()
	case s.command == "systemctl restart crisp crisp-agent":
		q.agent.end(syscall.SIGTERM)
		config, err := os.ReadFile(filepath.Join(q.etc, "crisp/config.toml"))
		config = bytes.ReplaceAll(config, []byte(`"/etc/`), []byte(`"`+q.etc+`/`))
		config = bytes.ReplaceAll(config, []byte("/usr/local/bin"), []byte(filepath.Dir(testenv.GVisorShim())))
		path := filepath.Join(n.dir, "crispd.toml")
		if err = errors.Join(err, os.WriteFile(path, []byte(withInit(string(config))), 0o644), n.stopDaemon(syscall.SIGTERM), n.start(path, nil)); err != nil {
			q.Fatal(err)
		}
		q.startAgent()
	case s.command == "systemctl restart prometheus":
		startPrometheus(q.T, q.prometheus, filepath.Join(q.etc, "prometheus/prometheus.yml"), filepath.Join(q.work, "metrics"), "127.0.0.1:9090")
	default:
		q.Errorf("quickstart.md:%d: the test has nothing for %s", s.line, s.command)
	}
	return true
}

// startAgent starts the agent with the flags of the service, and the test's manifests.
func (q *quickstart) startAgent() {
	q.Helper()
	dropIns, err := filepath.Glob(filepath.Join(q.etc, "systemd/*/crisp-agent.service.d/*.conf"))
	if err != nil {
		q.Fatal(err)
	}
	for _, path := range dropIns {
		const command = "\nExecStart=/usr/bin/crisp agent "
		_, flags, ok := strings.Cut(strings.ReplaceAll(string(read(q.T, path)), " --manifests /etc/crisp/pods", ""), command)
		if !ok {
			q.Fatalf("%s has no line %s", path, command)
		}
		q.agent.flags = strings.Fields(flags)
	}
	q.agent.start()
	q.agent.until(func() bool { _, code := q.agent.crisp("", "get", "nodes"); return code == 0 }, "the agent answers")
	if len(dropIns) == 0 {
		q.Cleanup(func() { q.agent.end(syscall.SIGTERM) })
	}
}
