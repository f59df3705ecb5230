package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The report has what go test prints without -v: closing lines, the output of failing tests, and
// build errors.
func TestReport(t *testing.T) {
	const events = `
{"ImportPath":"github.com/crisp-cri/crisp/c [x]","Action":"build-output","Output":"c/c.go:3:1: syntax error\n"}
{"ImportPath":"github.com/crisp-cri/crisp/c [x]","Action":"build-fail"}
{"Action":"start","Package":"github.com/crisp-cri/crisp/a"}
{"Action":"run","Package":"github.com/crisp-cri/crisp/a","Test":"TestGood"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/b","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/a","Test":"TestGood","Output":"    a_test.go:1: all is well\n"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/b","Test":"TestBad","Output":"    b_test.go:2: alas\n"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/a","Test":"TestGood","Output":"--- PASS: TestGood (0.00s)\n"}
{"Action":"pass","Package":"github.com/crisp-cri/crisp/a","Test":"TestGood"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/b","Test":"TestFine","Output":"    b_test.go:3: fine\n"}
{"Action":"pass","Package":"github.com/crisp-cri/crisp/b","Test":"TestFine"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/b","Test":"TestBad","Output":"--- FAIL: TestBad (1.00s)\n"}
{"Action":"fail","Package":"github.com/crisp-cri/crisp/b","Test":"TestBad"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/b","Test":"TestCrash","Output":"panic: at once\n"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/a","Test":"TestLess","Output":"    a_test.go:4: needs more\n"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/a","Test":"TestLess","Output":"--- SKIP: TestLess (0.00s)\n"}
{"Action":"skip","Package":"github.com/crisp-cri/crisp/a","Test":"TestLess"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/a","Test":"TestScript/x","Output":"        > [!electricity] skip 'needs more'\n"}
{"Action":"skip","Package":"github.com/crisp-cri/crisp/a","Test":"TestScript/x"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/a","Output":"chatter\n"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/a","Output":"PASS\n"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/a","Output":"ok  \tgithub.com/crisp-cri/crisp/a\t1.2s\n"}
{"Action":"pass","Package":"github.com/crisp-cri/crisp/a","Elapsed":1.2}
{"Action":"output","Package":"github.com/crisp-cri/crisp/b","Output":"exit status 2\n"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/b","Output":"FAIL\tgithub.com/crisp-cri/crisp/b\t1.0s\n"}
{"Action":"fail","Package":"github.com/crisp-cri/crisp/b"}
{"Action":"output","Package":"github.com/crisp-cri/crisp/d","Output":"?   \tgithub.com/crisp-cri/crisp/d\t[no test files]\n"}
{"Action":"skip","Package":"github.com/crisp-cri/crisp/d"}
no event
`
	const want = `c/c.go:3:1: syntax error
ok  	github.com/crisp-cri/crisp/a	1.2s
    b_test.go:2: alas
--- FAIL: TestBad (1.00s)
panic: at once
exit status 2
FAIL	github.com/crisp-cri/crisp/b	1.0s
?   	github.com/crisp-cri/crisp/d	[no test files]
no event
skipped on this machine: 2 tests
  needs more
      a TestLess
      a TestScript/x
`
	var out bytes.Buffer
	r := newReport(&out)
	if err := r.read(strings.NewReader(strings.TrimPrefix(events, "\n"))); err != nil {
		t.Fatal(err)
	}
	r.skips()
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A skip that no list allows is a failure, like a failing package.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "go")
	for name, c := range map[string]struct {
		script string
		fails  bool
	}{
		"all is well": {`echo '{"Action":"pass","Package":"github.com/crisp-cri/crisp/none","Test":"TestX"}'`, false},
		"a skip":      {`echo '{"Action":"skip","Package":"github.com/crisp-cri/crisp/none","Test":"TestX"}'`, true},
		"a failure":   {`exit 1`, true},
	} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+`test "$2" = -json || exit 0`+"\n"+c.script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := run([]string{program, "test", "./..."}, true); (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
}
