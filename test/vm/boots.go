package main

import (
	"strings"
	"time"
)

// A boot is one start of the node.
type boot struct {
	name   string
	append string   // to the kernel's command line
	has    []string // needs that the node must satisfy (test/testenv): no test is skipped for lack of them
	steps  []step
}

// A step runs on the node. If it fails, the others still run.
type step struct {
	name  string
	in    form          // quick, full or both
	limit time.Duration // for the whole step, on a machine that also does other work
	do    action
}

// A form says in which runs a step is: in those of `make test-vm QUICK=1`, in those without QUICK,
// or in both. A needed step runs whenever another step of its boot does.
type form uint8

const (
	quick form = 1 << iota
	full
	needed
)

// An action is what a step does: a function, or tests.
type action interface{ do(*guest) error }

type function func(*guest) error

func (f function) do(g *guest) error { return f(g) }

// tests are Go tests of one package of the tree: its directory, and the values of go test's -run
// and -skip.
type tests struct {
	dir, run, skip string
	env            []string
	must           []string // must pass, or the step fails, so that a renamed or skipped test is noticed
}

// exactly returns these tests of a package, which must all pass: top-level ones, or subtests of the
// one before the slash.
func exactly(dir string, names ...string) tests {
	parent, _, sub := strings.Cut(names[0], "/")
	if !sub {
		return tests{dir: dir, run: "^(" + strings.Join(names, "|") + ")$", must: names}
	}
	subtests := make([]string, len(names))
	for i, name := range names {
		subtests[i] = strings.TrimPrefix(name, parent+"/")
	}
	return tests{dir: dir, run: "^" + parent + "$/^(" + strings.Join(subtests, "|") + ")$", must: names}
}

// powerCuts cuts crispd off from its disk many times.
var powerCuts = func() tests {
	t := exactly("test", "TestPowerCuts")
	t.env = []string{"CRISP_POWER_CUTS=50"}
	return t
}()

// week sets the clock of the node, too.
var week = func() tests {
	t := exactly("test", "TestWeek")
	t.env = []string{"WEEK_CLOCK=yes"}
	return t
}()

// oomGroup runs containers out of memory many times.
var oomGroup = func() tests {
	t := exactly("oci/executor", "TestNoMemoryForExecs")
	t.env = []string{"CRISP_OOM_EXECS=600"}
	return t
}()

// fastInit tests the fast init with systemd's cgroups, on another kernel.
var fastInit = exactly("oci/executor", "TestFastInitIsTheSame", "TestInitsAreTheSame", "TestFastInitFailures", "TestTrapsInTheImage", "TestProgramRunsOnce",
	"TestSystemd", "TestOOM", "TestUpdate", "TestKillFrozen", "TestEndTakesEverything", "TestNoMemoryForExecs")

// all returns all tests of a package, except those that match skip.
func all(dir, skip string) tests { return tests{dir: dir, skip: skip} }

// ofThePackage are the tests of the installed Debian package.
var ofThePackage = []string{"TestPackageUpgrade", "TestPackageRemoval", "TestInstalledServiceRestarts", "TestServiceWatchdogAndReload"}

// boots is the table of `make test-vm`. A test is in the quick form when the machine that runs
// `make test` may be unable to show the same: it may lack systemd, cgroup v2, an LSM or CRIU. Two
// of the checkpoint scripts must suffice, for ten minutes: the others, which pass with Debian's
// CRIU, too, run with all-test.
var boots = []boot{
	{
		name: "apparmor",
		has:  []string{"systemd", "cgroup2", "apparmor", "criu", "idmap", "ipv6", "kmsg", "ptrace", "sys-resource", "program:runc", "program:crun", "program:nft"},
		steps: []step{
			{"node", quick | full | needed, 2 * time.Minute, function(has)},
			{"install", quick | full | needed, 10 * time.Minute, function(install)},
			{"package", full, 60 * time.Minute, exactly("test", ofThePackage...)},
			{"executor", quick, 15 * time.Minute, exactly("oci/executor",
				"TestSystemd", "TestOOM", "TestUpdate", "TestUpdateIsWholeOrNothing", "TestUpdateBelowUse", "TestUpdateOOMScore", "TestKillFrozen", "TestEndTakesEverything",
				"TestNoMemoryForExecs", "TestCrunOOMScore")},
			{"fastinit", quick, 15 * time.Minute, fastInit},
			{"scripts", quick, 20 * time.Minute, exactly("test",
				"TestScript/apparmor", "TestScript/checkpoint_container", "TestScript/checkpoint_pod", "TestScript/checkpoint_shim", "TestScript/exec_timeout", "TestScript/handler_crun", "TestScript/pod_runs", "TestScript/shim_limits")},
			{"unified", quick, 20 * time.Minute, exactly("test", "TestUnifiedNode", "TestAgentCgroups", "TestRunAsAService")},
			{"user", quick, 10 * time.Minute, exactly("test", "TestUserOfNode")},
			{"powercuts", full, 60 * time.Minute, powerCuts},
			{"week", full, 60 * time.Minute, week},
			{"oomgroup", full, 30 * time.Minute, oomGroup},
			{"all-executor", full, 60 * time.Minute, all("oci/executor", "")},
			{"all-oomscore", full, 5 * time.Minute, all("oci/executor/oomscore", "")},
			{"all-proc", full, 5 * time.Minute, all("oci/executor/proc", "")},
			{"all-runtime", full, 5 * time.Minute, all("oci/executor/runtime", "")},
			{"all-shim", full, 10 * time.Minute, all("oci/executor/shim", "")},
			{"all-stdio", full, 5 * time.Minute, all("oci/executor/stdio", "")},
			{"all-oci", full, 45 * time.Minute, all("oci", "")},
			{"all-network", full, 20 * time.Minute, all("network", "")},
			{"all-image", full, 20 * time.Minute, all("image", "")},
			{"all-layer", full, 20 * time.Minute, all("image/layer", "")},
			{"all-rootfs", full, 20 * time.Minute, all("image/rootfs", "")},
			{"all-procstat", full, 5 * time.Minute, all("internal/procstat", "")},
			{"all-userns", full, 5 * time.Minute, all("internal/userns", "")},
			{"all-rootless", full, 5 * time.Minute, all("internal/rootless", "")},
			{"all-crilog", full, 5 * time.Minute, all("internal/crilog", "")},
			{"all-node", full, 5 * time.Minute, all("agent/node", "")},
			{"all-criruntime", full, 5 * time.Minute, all("agent/criruntime", "")},
			{"all-podfiles", full, 5 * time.Minute, all("agent/podfiles", "")},
			{"all-volume", full, 5 * time.Minute, all("agent/volume", "")},
			{"all-agent", full, 5 * time.Minute, all("agent", "")},
			{"all-source", full, 5 * time.Minute, all("agent/source", "")},
			{"all-listen", full, 5 * time.Minute, all("apiserver/listen", "")},
			{"all-tree", full, 10 * time.Minute, all("internal/tree", "")},
			{"all-testdisk", full, 5 * time.Minute, all("test/testdisk", "")},
			{"all-checkpoint", full, 5 * time.Minute, all("checkpoint", "")},
			{"all-server", full, 20 * time.Minute, all("server", "")},
			{"all-crispd", full, 10 * time.Minute, all("cmd/crispd", "")},
			{"critest", full, 120 * time.Minute, conformance{}},
			{"userkubelet", full, 15 * time.Minute, comparison{exactly("test", "TestKubeletByUser")}},
			{"dropin", full, 30 * time.Minute, comparison{exactly(kubeletTests, "TestKubeletDropIn")}},
			{"metrics", full, 90 * time.Minute, comparison{exactly(kubeletTests, "TestMetrics")}},
			{"kubelet", full, 120 * time.Minute, comparison{all(kubeletTests, "^(TestMetrics|TestKubeletDropIn)$")}},
			{"all-apparmor", full, 5 * time.Minute, all("internal/apparmor", "")},
			{"all-test", full, 210 * time.Minute, all("test", "^(TestCRIDocumentIsComplete|"+strings.Join(ofThePackage, "|")+")$")},
		},
	},
	{
		name:   "selinux",
		append: "security=selinux selinux=1",
		has:    []string{"systemd", "cgroup2", "selinux"},
		steps: []step{
			{"node", full | needed, 2 * time.Minute, function(has)},
			{"install", full | needed, 10 * time.Minute, function(install)},
			{"enforce", full | needed, 2 * time.Minute, function(enforce)},
			{"scripts", full, 20 * time.Minute, exactly("test",
				"TestScript/selinux", "TestScript/pod_runs", "TestScript/shared_pid", "TestScript/exit_reasons", "TestScript/restart_exit_code", "TestScript/executor_crash")},
			{"fastinit", full, 10 * time.Minute, exactly("oci/executor", "TestFastInitIsTheSame")},
			{"all-selinux", full, 5 * time.Minute, all("server/selinux", "")},
			{"critest", full, 60 * time.Minute, conformance{"SELinux"}}, // critest has these specs only with SELinux
		},
	},
}
