// Skips runs `go test -json` and prints what go test prints without -v, in the order in
// which packages end: their closing lines, and the output of failing tests. Then it prints
// which tests were skipped and why, and fails if one of them may not be skipped on this
// machine (test/testenv, skips.txt).
//
//	skips [-part] GO test [FLAG …] PACKAGE …
//
// -part is for flags that select tests, such as -run: then tests that did not run are not
// reported.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/crisp-cri/crisp/test/testenv"
)

const module = "github.com/crisp-cri/crisp"

func main() {
	part := flag.Bool("part", false, "not all tests of the packages are run")
	flag.Parse()
	if err := run(flag.Args(), !*part); err != nil {
		fmt.Println("FAIL")
		fmt.Fprintln(os.Stderr, "skips:", err)
		os.Exit(1)
	}
}

func run(args []string, whole bool) error {
	i := slices.Index(args, "test")
	if i < 1 {
		return errors.New("usage: skips [-part] GO test [FLAG …] PACKAGE …")
	}
	args = slices.Insert(slices.Clone(args), i+1, "-json")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := newReport(os.Stdout)
	readErr := r.read(out)
	if err := errors.Join(readErr, cmd.Wait()); err != nil {
		r.skips()
		return err
	}
	r.skips()
	complaints, err := testenv.Judge(r.verdicts, whole, slices.Contains(args, "-short"))
	if err != nil {
		return err
	}
	for _, c := range complaints {
		fmt.Println("--- FAIL:", c)
	}
	if len(complaints) > 0 {
		return fmt.Errorf("%d tests were skipped or left out that must run here", len(complaints))
	}
	return nil
}

// An event is a line of go test -json (go doc test2json, go help buildjson).
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build's output
	Test       string // "" = the package's own
	Output     string
}

// A report has the events read so far.
type report struct {
	to       io.Writer
	packages map[string]*pack // by import path, until they have ended
	verdicts []testenv.Verdict
}

// A pack is a package while its tests run.
type pack struct {
	lines []event           // output, in its order
	last  map[string]string // of each test
	ended map[string]bool   // tests that passed or were skipped
}

func newReport(to io.Writer) *report { return &report{to: to, packages: map[string]*pack{}} }

// closing matches go test's own lines about a package.
var closing = regexp.MustCompile(`^(ok|FAIL|\?|---)\s`)

// frames matches the lines in which the testing package reports the beginning of a test.
var frames = regexp.MustCompile(`^=== [A-Z]+ `)

func (r *report) read(from io.Reader) error {
	in := bufio.NewReader(from)
	for {
		text, err := in.ReadString('\n')
		if text != "" {
			r.line(text)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) line(text string) {
	var e event
	if json.Unmarshal([]byte(text), &e) != nil || e.Action == "" {
		io.WriteString(r.to, text)
		return
	}
	if e.Action == "build-output" {
		io.WriteString(r.to, e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &pack{last: map[string]string{}, ended: map[string]bool{}}
		r.packages[e.Package] = p
	}
	switch e.Action {
	case "output":
		if frames.MatchString(e.Output) {
			return
		}
		p.lines = append(p.lines, e)
		if said := strings.TrimSpace(e.Output); said != "" && !strings.HasPrefix(said, "--- ") {
			p.last[e.Test] = said
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.end(p, e.Action)
			delete(r.packages, e.Package)
			return
		}
		p.ended[e.Test] = e.Action != "fail"
		dir := strings.TrimPrefix(strings.TrimPrefix(e.Package, module), "/")
		r.verdicts = append(r.verdicts, testenv.Verdict{Dir: dir, Test: e.Test, Action: e.Action, Said: p.last[e.Test]})
	}
}

// end prints what go test would print of a package that has ended: without -v, the output of
// passing tests is left out.
func (r *report) end(p *pack, how string) {
	for _, l := range p.lines {
		switch {
		case l.Test == "" && (how == "fail" && strings.TrimSpace(l.Output) != "PASS" || closing.MatchString(l.Output)):
			io.WriteString(r.to, l.Output)
		case l.Test != "" && how == "fail" && !p.ended[l.Test]:
			io.WriteString(r.to, l.Output)
		}
	}
}

// skips prints the skipped tests, by reason.
func (r *report) skips() {
	why := map[string][]string{}
	n := 0
	for _, v := range r.verdicts {
		if v.Action == "skip" {
			n++
			why[reason(v.Said)] = append(why[reason(v.Said)], v.Dir+" "+v.Test)
		}
	}
	if n > 0 {
		fmt.Fprintf(r.to, "skipped on this machine: %d tests\n", n)
	}
	for _, w := range slices.Sorted(maps.Keys(why)) {
		fmt.Fprintf(r.to, "  %s\n      %s\n", w, strings.Join(why[w], "\n      "))
	}
}

// place matches the position of a test's message, or a script's skip command.
var place = regexp.MustCompile(`^(?:[\w.-]+\.go:\d+: |> (?:\[.*\] )?skip )`)

// reason returns the message with which a test was skipped.
func reason(said string) string {
	if w := strings.Trim(place.ReplaceAllString(said, ""), "'"); w != "" {
		return w
	}
	return "(no reason was given)"
}
