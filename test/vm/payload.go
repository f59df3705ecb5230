package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// A payload is a directory that becomes the second disk:
//
//	vm  plan.json            this program and its plan
//	crisp.deb  next.deb      the packages
//	bin/testbin              the program of test containers
//	bin/shimtest  bin/specs  the shim of tests; the program that judges critest's report
//	bin/critest  registry/   if it exists, and its images
//	bin/kubelet              if make test-kubelet has built one
//	bin/loopback  src/.cache if Debian's containerd is unpacked there, for its test
//	src/.cache/shims         if make has built them
//	src/<package>/           the tree, each tested package with its package.test
type payload struct{ dir string }

// A plan is what the node is to do.
type plan struct {
	Boot  string
	Steps []string
	Run   string // go test's -run, instead of the steps' own
}

const module = "github.com/crisp-cri/crisp/"

func newPayload(ctx context.Context, o options, dir string) (*payload, error) {
	src := filepath.Join(dir, "src")
	for _, d := range []string{src, filepath.Join(dir, "bin"), filepath.Join(dir, "tests")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	if err := copyTree(".", src); err != nil {
		return nil, err
	}
	for from, to := range map[string]string{o.deb: "crisp.deb", o.next: "next.deb"} {
		if from == "" {
			continue
		}
		if err := copyFile(from, filepath.Join(dir, to), 0o644); err != nil {
			return nil, err
		}
	}
	fmt.Println("payload: compiling the tests")
	static := append(os.Environ(), "CGO_ENABLED=0")
	for program, to := range map[string]string{"test/vm": "vm", "test/testbin": "bin/testbin", "test/shimtest": "bin/shimtest", "test/conformance": "bin/specs"} {
		if err := goCommand(ctx, static, "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, to), module+program); err != nil {
			return nil, err
		}
	}
	packages, err := o.packages()
	if err != nil {
		return nil, err
	}
	args := []string{"test", "-c", "-tags", o.tags, "-ldflags", "-s -w", "-o", filepath.Join(dir, "tests") + "/"}
	for _, p := range packages {
		args = append(args, module+p)
	}
	if len(packages) > 0 {
		if err := goCommand(ctx, os.Environ(), args...); err != nil {
			return nil, err
		}
	}
	for _, p := range packages {
		name := filepath.Base(p) + ".test"
		if err := os.Rename(filepath.Join(dir, "tests", name), filepath.Join(src, p, "package.test")); err != nil {
			return nil, err
		}
	}
	if err := o.takeContainerd(ctx, dir); err != nil {
		return nil, err
	}
	if err := takeShims(dir); err != nil {
		return nil, err
	}
	if err := o.takeKubelet(ctx, dir); err != nil {
		return nil, err
	}
	return &payload{dir}, o.fetchCritest(ctx, dir)
}

// takeContainerd adds what the tests beside containerd need, if they are selected: the node has no
// Go, and installing the package would start containerd.
func (o options) takeContainerd(ctx context.Context, dir string) error {
	const unpacked = ".cache/containerd/usr/bin" // by make
	wanted, err := o.wants(func(s step) bool { return s.name == "all-test" || s.name == "metrics" })
	if err != nil || !wanted {
		return err
	}
	if _, err := os.Stat(unpacked); err != nil {
		return nil // the test reports it
	}
	to := filepath.Join(dir, "src", unpacked)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		if err := copyFile(filepath.Join(unpacked, program), filepath.Join(to, program), 0o755); err != nil {
			return err
		}
	}
	return goCommand(ctx, append(os.Environ(), "CGO_ENABLED=0"), "build", "-trimpath", "-ldflags", "-s -w",
		"-o", filepath.Join(dir, "bin", "loopback"), "github.com/containernetworking/plugins/plugins/main/loopback")
}

// takeShims adds the shims of other runtimes.
func takeShims(dir string) error {
	const built = ".cache/shims" // by make
	programs, err := os.ReadDir(built)
	if err != nil {
		return nil // the tests report it
	}
	to := filepath.Join(dir, "src", built)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, program := range programs {
		if program.Type().IsRegular() {
			if err := copyFile(filepath.Join(built, program.Name()), filepath.Join(to, program.Name()), 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

// wants reports whether such a step is selected in any boot.
func (o options) wants(such func(step) bool) (bool, error) {
	for _, b := range boots {
		names, err := o.chosen(b)
		if err != nil {
			return false, err
		}
		for _, s := range b.steps {
			if slices.Contains(names, s.name) && such(s) {
				return true, nil
			}
		}
	}
	return false, nil
}

// fetchCritest adds the critest on PATH, if a chosen step needs it.
func (o options) fetchCritest(ctx context.Context, dir string) error {
	program, err := exec.LookPath("critest")
	if err != nil {
		return nil // the step reports it
	}
	if wanted, err := o.wants(func(s step) bool { return s.name == "critest" }); err != nil || !wanted {
		return err
	}
	fmt.Println("payload: fetching critest's images")
	if err := fetchImages(ctx, "test/conformance/images.txt", program, filepath.Join(dir, "registry")); err != nil {
		return err
	}
	return copyFile(program, filepath.Join(dir, "bin", "critest"), 0o755)
}

// packages returns the packages with tests in the chosen steps.
func (o options) packages() ([]string, error) {
	var dirs []string
	for _, b := range boots {
		names, err := o.chosen(b)
		if err != nil {
			return nil, err
		}
		for _, s := range b.steps {
			t, ok := s.do.(tests)
			if c, with := s.do.(comparison); with && c.dir != kubeletTests { // that is of another module
				t, ok = c.tests, true
			}
			if ok && slices.Contains(names, s.name) && !slices.Contains(dirs, t.dir) {
				dirs = append(dirs, t.dir)
			}
		}
	}
	return dirs, nil
}

// goCommand runs the go that $GO names, which may be several words.
func goCommand(ctx context.Context, env []string, args ...string) error {
	program := strings.Fields(os.Getenv("GO"))
	if len(program) == 0 {
		program = []string{"go"}
	}
	cmd := exec.CommandContext(ctx, program[0], append(program[1:], args...)...)
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// An interrupt also ends the compilers.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", args[0], err)
	}
	return nil
}

func (p *payload) plan(b boot, steps []string, o options) error {
	data, err := json.Marshal(plan{Boot: b.name, Steps: steps, Run: o.run})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.dir, "plan.json"), data, 0o644)
}

// copyTree copies the tree's files, except build results and hidden files.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path != "." && (strings.HasPrefix(e.Name(), ".") || path == "bin") {
			if e.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		target := filepath.Join(to, path)
		if e.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		if !e.Type().IsRegular() {
			return nil
		}
		return copyFile(path, target, 0o644)
	})
}

func copyFile(from, to string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, mode)
}
