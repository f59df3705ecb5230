package executor_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"

	"github.com/crisp-cri/crisp/test/testenv"
)

// On a hybrid host, the most important tests run again in a mount namespace that has only
// the v2 hierarchy. It has no controllers there, so limits cannot be tested.
func TestOnUnifiedHierarchy(t *testing.T) {
	const unified = "/sys/fs/cgroup/unified"
	testenv.NeedRoot(t, "it mounts")
	if !cgroups.IsCgroup2HybridMode() {
		t.Skip("the other tests run on the hierarchy that this host has")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tests := "^Test(Run|ExitBySignal|EndTakesEverything|EndRemovesCgroups|SignalAll|KillFrozen|PodInit|Exec.*|StartGivenUpBeforeItsFork|StartWhereEverythingIsStopped|Adopt|Upgrade|DeleteAfterCrash|CrunOOMScore)$"
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c",
		`mount --bind "$0" /sys/fs/cgroup && exec "$@"`, unified, self, "-test.run", tests, "-test.v")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestExecKillTakesItsTree") {
		t.Errorf("%v\n%s", err, out)
	}
}
