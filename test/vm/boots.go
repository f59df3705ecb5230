package main

import "time"

// A boot is one start of the node.
type boot struct {
	name   string
	append string // to the kernel's command line
	steps  []step
}

// A step runs inside. If it fails the others run nevertheless.
type step struct {
	name  string
	in    form          // quick, full or both
	limit time.Duration // of all of it, on a machine that does other things too
	do    action
}

// A form says in which runs a step is: in those of `make test-vm QUICK=1`, in those
// without, or in both. What is needed runs whenever another step of its boot does.
type form uint8

const (
	quick form = 1 << iota
	full
	needed
)

// An action is what a step does. It is a function, or tests.
type action interface{ do(*guest) error }

type function func(*guest) error

func (f function) do(g *guest) error { return f(g) }

// tests are Go tests of one package of the tree: its directory, and go test's -run
// and -skip.
type tests struct{ dir, run, skip string }

// ofThePackage are the tests of what the package has installed.
const ofThePackage = "TestPackageUpgrade|TestPackageRemoval|TestServiceRestart|TestServiceWatchdogAndReload"

// boots is what `make test-vm` does. A test is in the quick form when the machine
// that runs `make test` cannot show the same: it has perhaps no systemd, no cgroup
// v2, no LSM, no CRIU. Of the checkpoint scripts two must do, for ten minutes: the
// others, which Debian's CRIU passes too, run with all-test.
var boots = []boot{
	{
		name: "apparmor",
		steps: []step{
			{"install", quick | full | needed, 10 * time.Minute, function(install)},
			{"package", full, 60 * time.Minute, tests{"test", "^(" + ofThePackage + ")$", ""}},
			{"executor", quick, 15 * time.Minute, tests{"oci/executor", "Systemd|Unified|OOM$|Update$|KillFrozen", ""}},
			{"scripts", quick, 20 * time.Minute, tests{"test", "TestScript/^(apparmor|checkpoint_container|checkpoint_pod|handler_crun|pod_runs)$", ""}},
			{"all-executor", full, 30 * time.Minute, tests{"oci/executor", "", ""}},
			{"all-oci", full, 30 * time.Minute, tests{"oci", "", ""}},
			{"all-network", full, 20 * time.Minute, tests{"network", "", ""}},
			{"all-image", full, 20 * time.Minute, tests{"image", "", ""}},
			{"all-userns", full, 5 * time.Minute, tests{"internal/userns", "", ""}},
			{"all-crilog", full, 5 * time.Minute, tests{"internal/crilog", "", ""}},
			{"all-cgroup", full, 5 * time.Minute, tests{"agent/cgroup", "", ""}},
			{"all-crix", full, 5 * time.Minute, tests{"agent/crix", "", ""}},
			{"all-volume", full, 5 * time.Minute, tests{"agent/volume", "", ""}},
			{"all-agent", full, 5 * time.Minute, tests{"agent", "", ""}},
			{"all-source", full, 5 * time.Minute, tests{"agent/source", "", ""}},
			{"all-tree", full, 10 * time.Minute, tests{"internal/tree", "", ""}},
			{"all-checkpoint", full, 5 * time.Minute, tests{"checkpoint", "", ""}},
			{"all-server", full, 20 * time.Minute, tests{"server", "", ""}},
			{"all-crispd", full, 10 * time.Minute, tests{"cmd/crispd", "", ""}},
			{"critest", full, 120 * time.Minute, conformance{}},
			{"kubelet", full, 120 * time.Minute, comparison{}},
			{"all-apparmor", full, 5 * time.Minute, tests{"internal/apparmor", "", ""}},
			{"all-test", full, 180 * time.Minute, tests{"test", "", "^(TestCRIDocumentIsComplete|" + ofThePackage + ")$"}},
		},
	},
	{
		name:   "selinux",
		append: "security=selinux selinux=1",
		steps: []step{
			{"install", full | needed, 10 * time.Minute, function(install)},
			{"enforce", full | needed, 2 * time.Minute, function(enforce)},
			{"scripts", full, 20 * time.Minute, tests{"test", "TestScript/^(selinux|pod_runs|shared_pid|exit_reasons|restart_exit_code|executor_crash)$", ""}},
			{"all-selinux", full, 5 * time.Minute, tests{"server/selinux", "", ""}},
			{"critest", full, 60 * time.Minute, conformance{"SELinux"}}, // it has these specs only where SELinux is
		},
	},
}
