package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// crispd and its executor are replaced by those of another release, whose programs are in
// UPGRADE_FROM (make test-upgrade), and then by ours again, while containers write numbered lines,
// have a terminal, have attached clients, are probed by exec, and exit. The executor stays the same
// process, and so do the containers: every line is in its log, every exit code is right, and exec
// and attach work as soon as crispd serves. There are only two reasons for an executor not to be
// upgraded: a release that cannot read what a later one has written reports that and takes nothing
// over, and a release from before executor upgrades works with the running one.
func TestUpgradeFrom(t *testing.T) {
	upgradeFrom(t, fromEnv("CONTAINERS", 10), func(*node) error { return nil })
}

// The same of an ordinary user's instance.
func TestUpgradeFromByUser(t *testing.T) {
	testenv.Need(t, "slirp4netns")
	upgradeFrom(t, 4, func(n *node) error { return n.byUser(hostUser, "network") })
}

func upgradeFrom(t *testing.T, containers int, prepare func(*node) error) {
	testenv.Need(t, "upgrade-from")
	from, err := filepath.Abs(os.Getenv("UPGRADE_FROM"))
	if err != nil {
		t.Fatal(err)
	}
	ours := ""
	n, config := startNode(t, func(n *node, _ string) error {
		ours, n.binaries.dir = n.binaries.dir, from
		return prepare(n)
	})
	// Early releases refuse containers that do not specify a PID namespace.
	linux := &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
		NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER},
	}}
	u := &upgrades{siege: newSiege(t, n, containers, 1, linux, ""), config: config, ours: ours, runs: from}
	if version(t, from) == version(t, ours) {
		t.Fatalf("both releases are %s: nothing would be upgraded", version(t, ours))
	}
	lines := u.besieged(1, func() {
		for i := range 3 {
			u.to(2*i, ours)
			u.to(2*i+1, from)
		}
		u.to(6, ours) // which the siege ends with
	})
	if u.lost > 0 {
		t.Errorf("%d exit codes were lost", u.lost)
	}
	t.Logf("%s and %s: %d upgrades, %d refused, %d not asked for; %d lines; %d exits; %d execs, %d cut short; %d attachments saw %d lines",
		version(t, from), version(t, ours), u.done, u.refused, u.kept, lines, u.exits, u.execs.Load(), u.cut.Load(), u.attachments.Load(), u.watched.Load())
	if u.done == 0 {
		t.Error("nothing was upgraded")
	}
}

// version returns the version that the executor in dir reports.
func version(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(dir, "crisp-executor"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// An upgrades is a node whose programs are replaced again and again.
type upgrades struct {
	*siege
	config              string
	ours                string // the directory of this release's programs
	runs                string // directory of the running executor's program
	done, refused, kept int
}

// refusals matches a release's reasons for taking nothing over: it detects that a later release has
// written the state.
var refusals = regexp.MustCompile(`cannot carry on.*has version \d+|speaks protocol \d+|written by a newer crispd`)

// to ends crispd, sometimes by SIGKILL, and starts the one in dir, which upgrades the executor to
// the one in dir. If that crispd refuses, the previous one is started again.
func (u *upgrades) to(i int, dir string) {
	u.t.Helper()
	quitters := u.quitters(i)
	executor, err := u.executorPid()
	if err != nil {
		u.t.Fatal(err)
	}
	u.down.Add(1)
	sig := syscall.SIGTERM
	if i%3 == 2 {
		sig = syscall.SIGKILL
	}
	if err := u.stopDaemon(sig); err != nil {
		u.t.Fatal(err)
	}
	before := u.binaries.dir
	said := len(read(u.t, u.log()))
	u.binaries.dir = dir
	if err := u.node.start(u.config, nil); err != nil {
		if !refusals.MatchString(err.Error()) {
			u.t.Fatalf("upgrade %d, to %s: %v", i, version(u.t, dir), err)
		}
		u.t.Logf("refused: %v", err)
		u.binaries.dir = before
		if err := u.node.start(u.config, nil); err != nil {
			u.t.Fatal(err)
		}
	}
	switch now, err := u.executorPid(); {
	case err != nil || now != executor:
		u.t.Errorf("upgrade %d, to %s: the executor is process %d, was %d (%v)", i, version(u.t, dir), now, executor, err)
	default:
		u.upgraded(i, dir, string(read(u.t, u.log())[said:]))
	}
	u.works(i)
	u.down.Add(1)
	u.unharmed(i, quitters)
}

// upgraded checks in crispd's log since its start that the executor was upgraded to the one
// in dir.
func (u *upgrades) upgraded(i int, dir, log string) {
	u.t.Helper()
	switch {
	case dir == u.runs:
	case strings.Contains(log, "executor was upgraded"):
		u.done++
		u.runs = dir
	case dir != u.ours && !strings.Contains(log, "executor stays as it is"):
		u.kept++
	case refusals.MatchString(log):
		u.refused++
		u.t.Logf("refused: %s", refusals.FindString(log))
	default:
		u.t.Errorf("upgrade %d: the executor was not made %s:\n%s", i, version(u.t, dir), log)
	}
}
