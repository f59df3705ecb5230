package testenv

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The lists can be parsed, and every probe has a result on any machine.
func TestListed(t *testing.T) {
	all, err := entries(listed)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Errorf("only %d tests are listed", len(all))
	}
	for need := range probes {
		t.Logf("%s: %s", need, Lacks(need))
		if a, b := Lacks(need), Lacks("!"+need); (a == "") == (b == "") {
			t.Errorf("need %s: %q, and its negation: %q", need, a, b)
		}
	}
}

func TestJudge(t *testing.T) {
	const list = `
a    TestOne        criu
a    TestTwo/*      systemd !cgroup2
a    TestThree/deep criu
`
	lacksCRIU := func(need string) string {
		if need == "criu" {
			return "gone"
		}
		return ""
	}
	verdict := func(test, action string) Verdict { return Verdict{"a", test, action, "why"} }
	all := []Verdict{verdict("TestOne", "pass"), verdict("TestTwo/x", "pass"), verdict("TestThree", "pass"), verdict("TestThree/deep", "pass")}
	with := func(v ...Verdict) []Verdict { return append(v, all...) }
	for name, c := range map[string]struct {
		verdicts []Verdict
		whole    bool
		want     []string
	}{
		"as it should be":                     {with(), true, nil},
		"it may":                              {with(verdict("TestOne", "skip")), true, nil},
		"it has what it needs":                {with(verdict("TestTwo/x", "skip")), true, []string{"a TestTwo/x was skipped though this machine has what it needs (systemd, !cgroup2): why"}},
		"not in the list":                     {with(verdict("TestFour", "skip")), true, []string{"a TestFour was skipped, and is not in test/testenv/skips.txt: why"}},
		"its parent is":                       {with(verdict("TestOne/x", "skip")), true, []string{"a TestOne/x was skipped, and is not in test/testenv/skips.txt: why"}},
		"of another package":                  {with(Verdict{"b", "TestOne", "skip", "why"}), true, []string{"b TestOne was skipped, and is not in test/testenv/skips.txt: why"}},
		"an input of a fuzz target":           {with(verdict("FuzzX/seed#0", "skip")), true, nil},
		"a fuzz target":                       {with(verdict("FuzzX", "skip")), true, []string{"a FuzzX was skipped, and is not in test/testenv/skips.txt: why"}},
		"gone":                                {all[:1], true, []string{"a TestTwo/* did not run: test/testenv/skips.txt knows of it, and this machine has what it needs"}},
		"gone, and not all were asked for":    {all[:1], false, nil},
		"it did not come to its subtests":     {append(all[:1:1], verdict("TestTwo", "fail")), true, nil},
		"another package than that was asked": {nil, true, nil},
	} {
		got, err := judge(list, c.verdicts, c.whole, lacksCRIU)
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestBadList(t *testing.T) {
	for list, want := range map[string]string{"a TestX": "want a package", "a TestX electricity": "electricity is unknown", "a Test[ criu": "syntax error"} {
		if _, err := judge(list, nil, true, Lacks); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", list, err)
		}
	}
}

// Tests that -short skips may be skipped with it, and only then.
func TestJudgeShort(t *testing.T) {
	skipped := []Verdict{{Dir: "cmd/crisp", Test: "TestJob", Action: "skip", Said: "left out"}}
	for short, want := range map[bool]int{true: 0, false: 1} {
		if got, err := Judge(skipped, false, short); err != nil || len(got) != want {
			t.Errorf("short %v: %q, %v; want %d complaints", short, got, err, want)
		}
	}
}
