package test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// After a power loss, every pod that should run is started again, whatever its source;
// those that had ended stay ended, and their records are kept.
func TestAgentReboot(t *testing.T) {
	n, config := startNode(t)
	l := labOn(t, n)
	l.until(func() bool { _, code := l.agentProcess.crisp("", "get", "nodes"); return code == 0 }, "the agent answers")
	l.says(0, `^pod/x created\n$`, "run", "--name", "x", "--pull", "Never", testImage, "--", "sleep", "for-ever")
	x, file, done := l.pick(t, "x"), l.pick(t, "file"), l.pick(t, "done")
	file.write("  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], volumeMounts: [{name: d, mountPath: /d}]}]\n  volumes: [{name: d, emptyDir: {}}]\n")
	done.write("  restartPolicy: Never\n  containers: [{name: app, image: IMAGE, args: [exit, \"4\"]}]\n")
	x.awaitReady()
	file.awaitReady()
	file.exec("app", "write", "/d/f", "kept")
	done.awaitPhase(v1.PodFailed)
	done.until(func() bool { return done.status("app").State.Terminated != nil }, "its end is known")
	uid, before := x.pod().UID, done.pod().Status

	l.end(syscall.SIGKILL)
	reboot(t, n)
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
	l.start()
	for _, pod := range []*lab{x, file} {
		name := "app"
		if pod == x {
			name = "main"
		}
		pod.awaitRestarts(name, 1)
		pod.awaitReady()
		if s := pod.status(name); s.RestartCount != 1 || s.LastTerminationState.Terminated == nil {
			t.Errorf("%s: %+v", pod.name, s)
		}
	}
	if now := x.pod().UID; now != uid {
		t.Errorf("pod x has the UID %s, it was %s", now, uid)
	}
	if got := file.exec("app", "cat", "/d/f"); got != "kept" {
		t.Errorf("the volume has %q", got)
	}
	if now := done.pod().Status; now.Phase != before.Phase || !now.StartTime.Equal(before.StartTime) || len(done.containers("app")) > 1 ||
		now.ContainerStatuses[0].State.Terminated == nil || now.ContainerStatuses[0].State.Terminated.ExitCode != 4 {
		t.Errorf("the ended container is %+v, it was %+v", now, before)
	}
	if out, code := l.agentProcess.crisp("", "events", "--for", "pod/done"); code != 0 || strings.Count(out, "Started") != 1 {
		t.Errorf("events: %d\n%s", code, out)
	}
	l.says(0, `pod/x deleted`, "delete", "x", "--grace-period", "1")
	l.clear()
}

// reboot ends all processes of the node at once and removes from the kernel what a new
// kernel would not have. The disk stays as it was at that moment.
func reboot(t *testing.T, n *node) {
	t.Helper()
	if err := n.stopDaemon(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	saved := n.root + ".saved"
	if out, err := exec.Command("cp", "-ax", n.root, saved).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
	if err := n.wipe(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(n.root); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(saved, n.root); err != nil {
		t.Fatal(err)
	}
	newBoot(t, n)
}
