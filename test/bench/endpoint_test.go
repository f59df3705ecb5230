package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseEndpoint(t *testing.T) {
	got, err := parseEndpoint("containerd=unix:///run/c.sock,pid=12,pid=13,exe=containerd-shim-runc-v2,exe=x")
	if err != nil {
		t.Fatal(err)
	}
	want := endpoint{name: "containerd", addr: "unix:///run/c.sock", pids: []int{12, 13}, exes: []string{"containerd-shim-runc-v2", "x"}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(endpoint{})); d != "" {
		t.Error(d)
	}
	for arg, want := range map[string]string{
		"":                  "want name=address",
		"unix:///run/c":     "want name=address",
		"a=unix:///s,pid=":  "is no process id",
		"a=unix:///s,pid=0": "is no process id",
		"a=unix:///s,exe=":  "exe without a name",
		"a=unix:///s,sock":  "want pid= or exe=",
	} {
		if _, err := parseEndpoint(arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseEndpoint(%q): %v, want %q", arg, err, want)
		}
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"":                               "no -endpoint given",
		"-endpoint a=u -subject b":       "-subject b is no endpoint",
		"-endpoint a=u -phases exec,x":   `no phase "x"`,
		"-endpoint a=u -nets host,none":  `no network "none"`,
		"-endpoint a=u -rounds 0":        "at least 1",
		"-endpoint a=u -cgroup-parent /": "no clean absolute path",
	} {
		if _, err := parseFlags(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	o, err := parseFlags(strings.Fields("-endpoint a=u -endpoint b=v"))
	if err != nil || o.subject != "a" || len(o.endpoints) != 2 {
		t.Errorf("have subject %q, %d endpoints, %v", o.subject, len(o.endpoints), err)
	}
}
