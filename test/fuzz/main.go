// Fuzz runs the fuzz targets of the tree, each for some time and some of them at once, and prints the
// results: the number of executions, their CPU time, how many inputs covered new code, when the
// last of these was found, and whether one failed. The input of a failure is in testdata/fuzz of
// its package, where every later `go test` runs it.
//
//	fuzz [-time 30s] [-p 1] [-run REGEXP] [-keep] [-tags TAGS] [PACKAGE …]
//
// Only the code of this module is instrumented, since that is what the inputs should cover;
// everything else comes from the build cache. Inputs that cover new code are kept in .cache/fuzz
// for the next run. -keep does not fuzz: it copies inputs that cover code which no seed covers into
// the tree, the smallest first.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

const module = "github.com/crisp-cri/crisp"

func main() {
	each := flag.Duration("time", 30*time.Second, "how long each target runs")
	only := flag.String("run", "", "only targets whose package and name match the `regexp`, as in \"layer.FuzzUnpack$\"")
	parallel := flag.Int("p", 1, "how many targets run at once")
	keep := flag.Bool("keep", false, "fuzz nothing, but take what was found into testdata/fuzz")
	tags := flag.String("tags", "", "build `tags`")
	flag.Parse()
	packages := flag.Args()
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	if err := run(*tags, packages, *only, *each, max(*parallel, 1), *keep); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// errFailed is for failures that are already in the table.
var errFailed = errors.New("a target has failed: its input is in testdata/fuzz, and runs with every go test from now on")

func run(tags string, packages []string, only string, each time.Duration, parallel int, keep bool) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	targets, err := find(tags, packages)
	if err != nil {
		return err
	}
	targets = slices.DeleteFunc(targets, func(t target) bool { return !match.MatchString(t.String()) })
	if len(targets) == 0 {
		return errors.New("there is no such target")
	}
	built := map[string]string{} // program by directory
	for _, t := range targets {
		if built[t.dir] == "" {
			if built[t.dir], err = build(tags, t, keep); err != nil {
				return err
			}
		}
	}
	head, try := "target\texecutions\tprocessor\tnew inputs\tlast after\tresult", func(t target) (string, error) {
		return t.fuzz(built[t.dir], each)
	}
	if keep {
		parallel = 1 // they share a profile
		head, try = "target\tfound\tkept\tbytes", func(t target) (string, error) { return t.keep(built[t.dir]) }
	}
	lines, errs := make([]string, len(targets)), make([]error, len(targets))
	var running sync.WaitGroup
	places := make(chan struct{}, parallel)
	for i, t := range targets {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			lines[i], errs[i] = try(t)
			fmt.Fprintf(os.Stderr, "%s: %s\n", t, strings.ReplaceAll(lines[i], "\t", " ")) // as soon as it is known
		})
	}
	running.Wait()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, head)
	failed := false
	for i, t := range targets {
		if errs[i] != nil && !errors.Is(errs[i], errFailed) {
			return fmt.Errorf("%s: %w", t, errs[i])
		}
		failed = failed || errs[i] != nil
		fmt.Fprintf(table, "%s\t%s\n", t, lines[i])
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if failed {
		return errFailed
	}
	return nil
}

// A target is one fuzz test.
type target struct {
	pkg, dir, name string // dir is absolute
}

func (t target) String() string { return strings.TrimPrefix(t.pkg, module+"/") + "." + t.name }

// corpus returns the directory of the inputs that the fuzzer has found for a package's targets.
func (t target) corpus() string {
	return filepath.Join(".cache", "fuzz", "corpus", strings.TrimPrefix(t.pkg, module+"/"))
}

// find lists the targets. It reads the sources, because asking each test binary would require
// linking all of them.
func find(tags string, packages []string) ([]target, error) {
	cmd := command("list", append([]string{"-tags", tags, "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, packages...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var targets []target
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return targets, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		for _, name := range append(p.TestGoFiles, p.XTestGoFiles...) {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Fuzz") {
					targets = append(targets, target{p.ImportPath, p.Dir, fn.Name.Name})
				}
			}
		}
	}
}

// command returns a command of the go that make has found, which may not be on PATH.
func command(verb string, args ...string) *exec.Cmd {
	name := os.Getenv("GO")
	if name == "" {
		name = "go"
	}
	return exec.Command(name, append([]string{verb}, args...)...)
}

// build builds the program of a target's package, for fuzzing or to measure the coverage of an
// input.
func build(tags string, t target, cover bool) (string, error) {
	kind, flags := "fuzz", []string{"-gcflags=" + module + "/...=-d=libfuzzer"}
	if cover {
		kind, flags = "cover", []string{"-cover", "-coverpkg=" + module + "/..."}
	}
	path, err := filepath.Abs(filepath.Join(".cache", "fuzz", "bin", kind, strings.ReplaceAll(t.pkg, "/", "-")+".test"))
	if err != nil {
		return "", err
	}
	if out, err := command("test", append(flags, "-c", "-vet=off", "-tags", tags, "-o", path, t.pkg)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go test -c %s: %w\n%s", t.pkg, err, out)
	}
	return path, nil
}

var (
	progress = regexp.MustCompile(`elapsed: (\S+), execs: (\d+) .*new interesting: (\d+)`)
	written  = regexp.MustCompile(`Failing input written to (\S+)`)
	// A known bug reports the end of the fuzzing time as a failure: https://go.dev/issue/75804.
	timedOut = regexp.MustCompile(`--- FAIL: \S+ \(\S+\)\n\s+context deadline exceeded\n`)
	skipped  = regexp.MustCompile(`(?s)--- SKIP.*?\n\s*\S+: (.*?)\n`)
)

// fuzz runs the target and returns its line of the table.
func (t target) fuzz(program string, each time.Duration) (line string, err error) {
	corpus, err := filepath.Abs(t.corpus())
	if err != nil {
		return "", err
	}
	// Go's fuzzer does not detect an input that never ends.
	ctx, cancel := context.WithTimeout(context.Background(), each+3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.fuzz", "^"+t.name+"$", "-test.run", "^"+t.name+"$", "-test.v", "-test.parallel", "1",
		"-test.fuzztime", each.String(), "-test.fuzzminimizetime", "300x", "-test.fuzzcachedir", corpus)
	cmd.Dir = t.dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	failure := cmd.Run()
	if ctx.Err() == nil && timedOut.Match(out.Bytes()) && !written.Match(out.Bytes()) {
		failure = nil
	}
	execs, found, last := "0", "0", "-"
	for _, m := range progress.FindAllStringSubmatch(out.String(), -1) {
		if m[3] != found {
			last = m[1]
		}
		execs, found = m[2], m[3]
	}
	processor := (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Round(time.Second)
	result := "ok"
	switch m, s := written.FindStringSubmatch(out.String()), skipped.FindStringSubmatch(out.String()); {
	case ctx.Err() != nil:
		result = "FAILED: an input does not come to an end"
	case failure != nil && m != nil:
		result = "FAILED: " + m[1]
		// CI keeps no files.
		if input, err := os.ReadFile(filepath.Join(t.dir, m[1])); err == nil {
			fmt.Fprintf(&out, "%s:\n%s", m[1], input)
		}
	case failure != nil:
		result = "FAILED"
	case s != nil:
		result = "skipped: " + s[1]
	}
	if failure != nil {
		text := out.String()
		fmt.Fprintf(os.Stderr, "%s\n", text[max(0, len(text)-20000):])
		err = errFailed
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", execs, processor, found, last, result), err
}

// Limits of the inputs that are copied into the tree: the size of each, and of all inputs of a
// target together.
const (
	maxInput = 8 << 10
	maxKept  = 32 << 10
)

// keep copies inputs into testdata that cover code which neither the seeds nor earlier kept inputs
// cover.
func (t target) keep(program string) (line string, err error) {
	found, err := os.ReadDir(filepath.Join(t.corpus(), t.name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	type input struct {
		name string
		data []byte
	}
	var inputs []input
	for _, e := range found {
		data, err := os.ReadFile(filepath.Join(t.corpus(), t.name, e.Name()))
		if err != nil {
			return "", err
		}
		inputs = append(inputs, input{e.Name(), data})
	}
	slices.SortFunc(inputs, func(a, b input) int { return len(a.data) - len(b.data) })
	reached := map[string]bool{}
	if _, err := t.reach(program, "", reached); err != nil {
		return "", err
	}
	dir := filepath.Join(t.dir, "testdata", "fuzz", t.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	kept, size := 0, 0
	for _, in := range inputs {
		path := filepath.Join(dir, in.name)
		if _, err := os.Stat(path); err == nil || len(in.data) > maxInput || size+len(in.data) > maxKept {
			continue
		}
		if err := os.WriteFile(path, in.data, 0o644); err != nil {
			return "", err
		}
		// An input that cannot be run is from an earlier version of the target with other
		// arguments.
		if more, err := t.reach(program, in.name, reached); err == nil && more {
			kept, size = kept+1, size+len(in.data)
		} else if err := os.Remove(path); err != nil {
			return "", err
		}
	}
	_ = os.Remove(dir) // if it is empty
	_ = os.Remove(filepath.Dir(dir))
	_ = os.Remove(filepath.Dir(filepath.Dir(dir)))
	return fmt.Sprintf("%d\t%d\t%d", len(inputs), kept, size), nil
}

// reach runs one input, or all seeds, and adds the blocks that it covers. It reports whether one
// was new.
func (t target) reach(program, name string, reached map[string]bool) (more bool, err error) {
	profile, err := filepath.Abs(filepath.Join(".cache", "fuzz", "profile"))
	if err != nil {
		return false, err
	}
	which := "^" + t.name + "$"
	if name != "" {
		which += "/^" + name + "$"
	}
	cmd := exec.Command(program, "-test.run", which, "-test.coverprofile", profile)
	cmd.Dir = t.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return false, fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) { // file:from,to statements count
		fields := strings.Fields(line)
		if len(fields) != 3 || reached[fields[0]] {
			continue
		}
		if n, err := strconv.Atoi(fields[2]); err == nil && n > 0 {
			reached[fields[0]], more = true, true
		}
	}
	return more, nil
}
