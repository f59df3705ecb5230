package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The installed service and systemd: the status line shows the running pods, a reload needs
// no restart, and a crispd that does not answer is killed and restarted. Pods are not
// affected.
func TestServiceWatchdogAndReload(t *testing.T) {
	n, _, _ := installedNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	until := func(what string, yes func() bool) {
		t.Helper()
		for ; !yes(); time.Sleep(100 * time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatalf("%s; systemd says %v", what, properties(t))
			}
		}
	}
	// The installed unit, with a shorter watchdog than a minute.
	dropIn := "/run/systemd/system/crisp.service.d/test.conf"
	if err := os.MkdirAll(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dropIn, []byte("[Service]\nWatchdogSec=20s\nTimeoutAbortSec=5s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	drop := "/etc/crisp/config.d/90-test.toml"
	defer func() {
		os.Remove(drop)
		os.Remove(dropIn)
		systemctl(t, "daemon-reload")
		systemctl(t, "restart", "crisp.service")
	}()
	systemctl(t, "daemon-reload")
	systemctl(t, "restart", "crisp.service")
	n.pods(ctx, t, 1, t.TempDir())
	defer n.removePods(context.WithoutCancel(ctx), t)
	pid := pidOf(t, "count")
	begin := properties(t)

	status := func() string {
		sandboxes, err := n.runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{}, grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		containers, err := n.runtime().ListContainers(ctx, &cri.ListContainersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d sandboxes, %d containers", len(sandboxes.Items), len(containers.Containers))
	}
	until("the status line does not become that of one pod", func() bool { return properties(t)["StatusText"] == status() })
	// The status line came with a watchdog notification; more of those follow.
	for range 2 {
		was := properties(t)["WatchdogTimestampMonotonic"]
		until("crispd gives no sign of life", func() bool { return properties(t)["WatchdogTimestampMonotonic"] != was })
	}

	handler := func(name string) bool {
		s, err := n.runtime().Status(ctx, &cri.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(s.RuntimeHandlers, func(h *cri.RuntimeHandler) bool { return h.Name == name })
	}
	write := func(text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(drop), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(drop, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		systemctl(t, "reload", "crisp.service")
	}
	write("[handlers.reloaded]\ndefault_capabilities = []\n")
	until("a reload brings no handler", func() bool { return handler("reloaded") })
	until("the service stays in its reload", func() bool { return properties(t)["ActiveState"] == "active" })
	// An invalid file changes nothing, and is reported.
	write("no_such_key = 1\n")
	until("the journal does not report the invalid file", func() bool {
		out, _ := exec.Command("journalctl", "-b", "-u", "crisp.service", "-o", "cat", "--no-pager").Output()
		return strings.Contains(string(out), "configuration not reloaded") && strings.Contains(string(out), drop+":1")
	})
	until("the service stays in its reload", func() bool { return properties(t)["ActiveState"] == "active" })
	if !handler("reloaded") {
		t.Error("an invalid file has removed the handler")
	}
	write("")
	until("a reload leaves the handler", func() bool { return !handler("reloaded") })
	if now := properties(t); now["MainPID"] != begin["MainPID"] || now["NRestarts"] != begin["NRestarts"] {
		t.Errorf("after the reloads systemd says %v, before %v", now, begin)
	}

	crispd, err := strconv.Atoi(begin["MainPID"])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(crispd, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until("a crispd that does not answer is not started again", func() bool {
		now := properties(t)
		return now["MainPID"] != begin["MainPID"] && now["ActiveState"] == "active"
	})
	if now := properties(t); now["NRestarts"] == begin["NRestarts"] {
		t.Errorf("systemd did not restart crispd: %v, before %v", now, begin)
	}
	until("the status line is not that of one pod again", func() bool { return properties(t)["StatusText"] == status() })
	if got := pidOf(t, "count"); got != pid {
		t.Errorf("the container is process %d, want %d", got, pid)
	}
	if _, err := n.runtime().StopContainer(ctx, &cri.StopContainerRequest{ContainerId: n.ids["writer0"]}); err != nil {
		t.Error(err)
	}
	numbered(t, n.logFile("writer0"))
}

// properties returns systemd's properties of crisp.service.
func properties(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.Command("systemctl", "show", "crisp.service", "-p", "MainPID,ActiveState,NRestarts,StatusText,Result,WatchdogTimestampMonotonic").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		all[k] = v
	}
	return all
}

func systemctl(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
		t.Fatalf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
