package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseEndpoint(t *testing.T) {
	got, err := parseEndpoint("containerd=unix:///run/c.sock,pid=12,pid=13,pidfile=/run/c.pid,exe=containerd-shim-runc-v2,exe=x@/run/c,bridge=b,ctl=/bin/c")
	if err != nil {
		t.Fatal(err)
	}
	want := endpoint{name: "containerd", addr: "unix:///run/c.sock", pids: []int{12, 13}, pidfile: "/run/c.pid",
		exes: []program{{"containerd-shim-runc-v2", ""}, {"x", "/run/c"}}, bridge: "b", ctl: "/bin/c"}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(endpoint{}, program{})); d != "" {
		t.Error(d)
	}
	for arg, want := range map[string]string{
		"":                  "want name=address",
		"unix:///run/c":     "want name=address",
		"a=unix:///s,pid=":  "has no value",
		"a=unix:///s,pid=0": "is no process id",
		"a=unix:///s,exe=":  "has no value",
		"a=unix:///s,sock":  "has no value",
		"a=unix:///s,x=y":   `no option "x"`,
	} {
		if _, err := parseEndpoint(arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseEndpoint(%q): %v, want %q", arg, err, want)
		}
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"":                               "no -endpoint given",
		"-endpoint a=u -phases exec,x":   `no phase "x"`,
		"-endpoint a=u -nets host,none":  `no network "none"`,
		"-endpoint a=u -rounds 0":        "at least 1",
		"-endpoint a=u -many 10,10":      "ascending",
		"-endpoint a=u -many 0":          "ascending",
		"-endpoint a=u -many-net x":      `no network "x"`,
		"-engine crun=/bin/crun":         "needs -rootfs",
		"-engine crun=crun -rootfs /r":   "want name=/path",
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

func TestSubjectIsEndpoint(t *testing.T) {
	o, err := parseFlags(strings.Fields("-endpoint a=u -subject b"))
	if err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "-subject b is no endpoint") {
		t.Errorf("have %v", err)
	}
}

func TestParseEngine(t *testing.T) {
	got, err := parseEngine("crun=/usr/bin/crun,pid=12")
	if want := (engine{"crun", "/usr/bin/crun", 12}); err != nil || got != want {
		t.Errorf("have %v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"", "crun", "crun=bin/crun", "crun=/bin/crun,pid=0", "crun=/bin/crun,12"} {
		if _, err := parseEngine(bad); err == nil {
			t.Errorf("parseEngine(%q) took it", bad)
		}
	}
}

func TestPIDFile(t *testing.T) {
	e := endpoint{pids: []int{7}, pidfile: filepath.Join(t.TempDir(), "pid")}
	if _, err := e.processes(); err == nil {
		t.Error("there is no file")
	}
	if err := os.WriteFile(e.pidfile, []byte("12\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := e.processes()
	if d := cmp.Diff([]int{12, 7}, got); d != "" || err != nil {
		t.Error(d, err)
	}
}
