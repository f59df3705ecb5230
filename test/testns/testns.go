// Package testns runs the tests of a package in their own namespaces.
//
// A test that starts containers changes state that all processes of a machine share: network
// interfaces, nftables, mounts, cgroups, the process table. Two such tests at once see each
// other, and leftovers of one cannot be told from what another still needs. Here each
// top-level test gets PID, network, mount, IPC, UTS and cgroup namespaces: a machine with a
// loopback device, an uplink that leads nowhere, an empty /run, and no other users. So
// several tests run at once, and anything that exists when a test has ended and did not when
// it began is a leak; no name or mark has to identify its owner.
//
// TestMain calls Main. The process that `go test` started only plans: it asks for the list
// of tests and starts this program again for each. That program is PID 1 of its namespaces
// (setup.go); it starts itself once more to run the test, reaps orphans, as a node's init
// does, and finally checks what is left.
//
// Where systemd runs, and without root, the tests run as `go test` would run them:
// systemd can be reached only from its own namespaces. CRISP_TEST_NAMESPACES=off
// asks for the same, for a debugger. So do benchmarks and profiles, which need one process.
// Tests that change what the machine needs to be reached say so: see Options.OwnNetwork.
package testns

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/test/testenv"
)

// Options say how a package's tests are run.
type Options struct {
	// Prepare is called once, before the first test. What it returns is added to the
	// tests' environment; done is called after the last one. May be nil.
	Prepare func() (env []string, done func(), err error)

	// Subtests names the subtests of a top-level test that are each to be run like top-level
	// tests. Subtests of other tests are not listed.
	Subtests map[string][]string

	// First names tests that begin before the others, as they take long.
	First []string

	// OwnNetwork is for tests that replace routes and flush rules: even where tests run on the
	// machine they get a network namespace, all of them together.
	OwnNetwork bool
}

// role is the environment variable that tells a process of a test its role.
const role = "CRISP_TEST_NAMESPACE_ROLE"

const (
	roleJoin = "join" // PID 1, in the machine's cgroups
	roleInit = "init" // PID 1, in the test's cgroup namespace
	roleRun  = "run"  // runs the test

	roleNetwork = "network" // runs all tests, in a network namespace
)

// Isolated reports whether this process runs in namespaces of its test: then everything that
// is new in them belongs to the test.
func Isolated() bool { return os.Getenv(role) == roleRun }

// Main runs the tests and exits.
func Main(m *testing.M, o Options) {
	flag.Parse()
	switch os.Getenv(role) {
	case roleRun:
		os.Exit(m.Run())
	case roleJoin:
		join()
	case roleInit:
		os.Exit(initMain())
	case roleNetwork:
		if !set("fuzzworker") { // which is in its coordinator's network
			if err := ownNetwork(); err != nil {
				fmt.Fprintln(os.Stderr, "set the tests' network up:", err)
				os.Exit(1)
			}
		}
		o.OwnNetwork = false
	}
	var done func()
	if o.Prepare != nil {
		env, f, err := o.Prepare()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		done = f
		for _, kv := range env {
			k, v, _ := strings.Cut(kv, "=")
			os.Setenv(k, v)
		}
	}
	var code int
	switch {
	case alone() && o.OwnNetwork && testenv.Root() && !set("list"):
		code = inNetwork()
	case alone():
		flag.Set("test.parallel", "1") // they are on one machine
		code = m.Run()
	default:
		code = plan(o)
	}
	if done != nil {
		done()
	}
	os.Exit(code)
}

// alone reports whether the tests run in this process.
func alone() bool {
	if onMachine() {
		return true
	}
	// Flags that are not about tests, or are about all of them in one process.
	return slices.ContainsFunc([]string{"list", "bench", "fuzz", "fuzzworker", "cpuprofile", "memprofile", "coverprofile", "trace"}, set)
}

// set reports whether a flag of go test was given.
func set(name string) bool {
	f := flag.Lookup("test." + name)
	return f != nil && f.Value.String() != f.DefValue
}

// onMachine reports whether tests run in the machine's namespaces.
func onMachine() bool {
	return !testenv.Root() || kernel.Probe().Systemd || os.Getenv("CRISP_TEST_NAMESPACES") == "off"
}

// A job is one process with its tests.
type job struct {
	name   string // for messages
	run    string // for -test.run
	took   time.Duration
	output []byte
	err    error
}

func plan(o Options) int {
	jobs, err := list(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	width, err := parallel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	deadline := time.Time{}
	if d, err := time.ParseDuration(flag.Lookup("test.timeout").Value.String()); err == nil && d > 0 {
		deadline = time.Now().Add(d)
	}
	verbose := testing.Verbose()

	failed := doAll(jobs, width, deadline, verbose)
	if verbose {
		slowest(jobs)
	}
	if failed {
		fmt.Println("FAIL")
		return 1
	}
	if len(jobs) == 0 {
		fmt.Fprintln(os.Stderr, "testing: warning: no tests to run")
	}
	fmt.Println("PASS")
	return 0
}

// doAll does the jobs, width at once, and prints their reports. A signal ends it.
func doAll(jobs []*job, width int, deadline time.Time, verbose bool) (failed bool) {
	var (
		mu    sync.Mutex // of what is printed, and of failed
		wg    sync.WaitGroup
		next  = make(chan *job)
		ended = make(chan os.Signal, 1)
		stop  = make(chan struct{})
	)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	go func() {
		<-ended
		close(stop)
	}()
	for range width {
		wg.Go(func() {
			for j := range next {
				j.do(deadline, stop)
				mu.Lock()
				failed = failed || j.err != nil
				os.Stdout.Write(j.report(verbose))
				mu.Unlock()
			}
		})
	}
feed:
	for _, j := range jobs {
		select {
		case next <- j:
		case <-stop:
			failed = true
			break feed
		}
	}
	close(next)
	wg.Wait()
	return failed
}

// parallel returns how many tests are to run at once.
func parallel() (int, error) {
	s := os.Getenv("CRISP_TEST_PARALLEL")
	if s == "" {
		return 2 * runtime.NumCPU(), nil // they mostly wait for something else than the processor
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("CRISP_TEST_PARALLEL: %q is not a number of tests", s)
	}
	return n, nil
}

// list returns a job for each test that -run and -skip select.
func list(o Options) ([]*job, error) {
	top, sub, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	wanted, err := regexp.Compile(top)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	first, rest, _ := strings.Cut(sub, "/")
	wantedSub, err := regexp.Compile(first)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.list=.*")
	cmd.Env = append(os.Environ(), role+"="+roleRun)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests: %w\n%s", err, out)
	}
	var jobs []*job
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if !strings.HasPrefix(name, "Test") && !strings.HasPrefix(name, "Fuzz") && !strings.HasPrefix(name, "Example") || !wanted.MatchString(name) {
			continue
		}
		if subs, ok := o.Subtests[name]; ok {
			for _, s := range subs {
				if wantedSub.MatchString(s) {
					jobs = append(jobs, &job{name: name + "/" + s, run: pattern(name, "^"+regexp.QuoteMeta(s)+"$", rest)})
				}
			}
			continue
		}
		jobs = append(jobs, &job{name: name, run: pattern("^"+name+"$", sub)})
	}
	slices.SortStableFunc(jobs, func(a, b *job) int {
		return order(slices.Contains(o.First, b.name)) - order(slices.Contains(o.First, a.name))
	})
	return jobs, nil
}

func order(first bool) int {
	if first {
		return 1
	}
	return 0
}

// pattern joins the patterns of -run for each level of tests.
func pattern(parts ...string) string {
	for len(parts) > 0 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	return strings.Join(parts, "/")
}

// do runs the job and waits for it. The job may take until the deadline.
func (j *job) do(deadline time.Time, stop <-chan struct{}) {
	began := time.Now()
	defer func() { j.took = time.Since(began) }()
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool {
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		return slices.Contains([]string{"test.run", "test.timeout", "test.v", "test.testlogfile"}, name)
	})
	args = append([]string{"-test.run=" + j.run, "-test.v=" + verboseFlag()}, args...)
	if !deadline.IsZero() {
		args = append([]string{"-test.timeout=" + time.Until(deadline).String()}, args...)
	}
	var output bytes.Buffer
	cmd, done, err := enter(args, &output)
	if err != nil {
		j.err = err
		return
	}
	defer func() { j.err = errors.Join(j.err, done()) }()
	if j.err = cmd.Start(); j.err != nil {
		return
	}
	over := make(chan struct{})
	go func() {
		select {
		case <-stop:
			cmd.Process.Kill()
		case <-over:
		}
	}()
	j.err = cmd.Wait()
	close(over)
	j.output = output.Bytes()
}

// enter makes the command that runs this program, with args, as PID 1 of namespaces of its
// own, and with cgroups and a $TMPDIR that done removes.
func enter(args []string, output io.Writer) (cmd *exec.Cmd, done func() error, err error) {
	tmp, err := os.MkdirTemp("", "t-")
	if err != nil {
		return nil, nil, err
	}
	groups := cgroups(nil)
	clean := func() error { return errors.Join(groups.remove(), os.RemoveAll(tmp)) }
	defer func() {
		if err != nil {
			err = errors.Join(err, clean())
		}
	}()
	// Users of user namespaces must be able to pass through it.
	if err := os.Chmod(tmp, 0o711); err != nil {
		return nil, nil, err
	}
	if groups, err = makeCgroups(filepath.Base(tmp)); err != nil {
		return nil, nil, err
	}
	cmd = exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), role+"="+roleJoin, "TMPDIR="+tmp, cgroupsEnv+"="+groups.String())
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:     true, // ^C is for the parent, which kills PID 1 and all with it
	}
	return cmd, clean, nil
}

// verboseFlag returns the planner's flag, or true: skipped tests must be shown in any case.
func verboseFlag() string {
	if v := flag.Lookup("test.v").Value.String(); v != "false" {
		return v
	}
	return "true"
}

// report returns what is printed of a job that has ended: everything or, if that was not
// asked for and it passed, the tests that were skipped and why.
func (j *job) report(verbose bool) []byte {
	var b bytes.Buffer
	if j.err != nil && !bytes.Contains(j.output, []byte("--- FAIL")) {
		fmt.Fprintf(&b, "--- FAIL: %s (%.2fs)\n    %v\n", j.name, j.took.Seconds(), j.err)
	}
	if verbose || j.err != nil {
		for line := range bytes.Lines(j.output) {
			if s := string(bytes.TrimSpace(line)); s != "PASS" && s != "FAIL" {
				b.Write(line)
			}
		}
		return b.Bytes()
	}
	lines := strings.SplitAfter(string(j.output), "\n")
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "--- SKIP") {
			b.WriteString(line)
			if i > 0 {
				b.WriteString(lines[i-1])
			}
		}
	}
	return b.Bytes()
}

// slowest prints which tests took longest, as they determine how long all take.
func slowest(jobs []*job) {
	all := slices.Clone(jobs)
	slices.SortFunc(all, func(a, b *job) int { return int(b.took - a.took) })
	for _, j := range all[:min(len(all), 10)] {
		fmt.Printf("# %6.1fs %s\n", j.took.Seconds(), j.name)
	}
}
