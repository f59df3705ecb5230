package test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// Root's instance and those of two users run pods of the same names on one machine, and do not meet. A
// user is refused everything of another's (SECURITY.md); so is one who runs no crisp.
func TestUsersDoNotMeet(t *testing.T) {
	testenv.Need(t, "slirp4netns")
	const six = "2001:db8::7"
	if out, err := exec.Command("ip", "addr", "add", six+"/128", "dev", "lo", "nodad").CombinedOutput(); err != nil {
		t.Fatalf("ip: %v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "addr", "del", six+"/128", "dev", "lo").Run() })
	ofRoot, _ := startNode(t)
	pod := func(n *node, name, port, text string) {
		t.Helper()
		n.run(t, t.Context(), name, "hostport="+port+":80")
		c := name + "-c"
		if err := n.createContainer(t.Context(), []string{name, c, "env=SECRET=" + port, "--", "testbin", "http", ":80", text, "sleep", "for-ever"}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.runtime().StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: n.ids[c]}); err != nil {
			t.Fatal(err)
		}
	}
	port := func(i int) string { return strconv.Itoa(18201 + i) }
	pod(ofRoot, "p", port(0), "pod "+port(0)) // its mounts stay, and are no remains of the users'
	one, _ := startNode(t, func(n *node, _ string) error { return n.byUser(hostUser, "network") })
	two, _ := startNode(t, func(n *node, _ string) error { return n.byUser(hostUser+1, "network") })
	all := []*node{ofRoot, one, two}
	answer := func(port string) string {
		out, err := exec.Command("curl", "-s", "--retry", "20", "--retry-connrefused", "--retry-delay", "1", "http://127.0.0.1:"+port).CombinedOutput()
		if err != nil {
			t.Errorf("port %s: %v", port, err)
		}
		return strings.TrimSpace(string(out))
	}
	for i, n := range all[1:] {
		pod(n, "p", port(1+i), "pod "+port(1+i))
	}
	serve := func(nodes ...*node) {
		t.Helper()
		for i, n := range nodes {
			list, err := n.runtime().ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
			if got := answer(port(i)); got != "pod "+port(i) || err != nil || len(list.Items) != 1 || list.Items[0].Id != n.ids["p"] {
				t.Errorf("instance %d answers %q and has %v, %v", i, got, list, err)
			}
		}
	}
	serve(all...)
	// Pods of users reach out over IPv6, where the machine does, and not what it serves on ::1.
	for address, want := range map[string]bool{"[" + six + "]:18211": true, "[::1]:18212": false} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "beyond") }))
		url := "http://" + strings.Replace(address, "::1", "fd00::2", 1)
		for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			resp, err := one.runtime().ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: one.ids["p-c"], Cmd: []string{"/testbin", "get", url}})
			if got := string(resp.GetStdout()) == "beyond"; err == nil && got == want {
				break
			}
			if time.Since(begun) > untilTime { // the way out is announced after a moment
				t.Fatalf("GET %s: %q %q, %v", url, resp.GetStdout(), resp.GetStderr(), err)
			}
		}
	}
	// A user gets no port of another user's.
	for i, n := range all[1:] {
		theirs := port(2 - i)
		if err := n.tryRun(t.Context(), "q", "hostport="+theirs+":80"); err == nil || !strings.Contains(err.Error(), "host port "+theirs+" of 0.0.0.0, tcp: it is in use") {
			t.Errorf("port %s of another user: %v", theirs, err)
		}
	}
	// Root's pod gets it, while it is there.
	pod(ofRoot, "q", port(2), "root's")
	if got := answer(port(2)); got != "root's" {
		t.Errorf("a port that root has taken answers %q", got)
	}
	ofRoot.remove(t, "q")
	serve(all...)
	one.refuses(t, nobody)
	one.refuses(t, hostUser+1)
	serve(all...)
	// The end of one instance does not touch the others.
	two.remove(t, "p")
	if err := errors.Join(two.stopDaemon(syscall.SIGTERM), two.wipe()); err != nil {
		t.Error(err)
	}
	serve(ofRoot, one)
	ofRoot.remove(t, "p")
	one.remove(t, "p")
}

// refuses checks what another user of the machine is refused.
func (n *node) refuses(t *testing.T, uid uint32) {
	t.Helper()
	their, err := n.runtime().Exec(t.Context(), &cri.ExecRequest{ContainerId: n.ids["p-c"], Cmd: []string{"/testbin", "print", "x"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	stream := their.Url[:strings.LastIndex(their.Url, "/")] + "/guess"
	run := func(command string) (string, error) {
		cmd := exec.Command("sh", "-c", command)
		cmd.Env = []string{"PATH=" + n.binaries.dir + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for command, says := range map[string]string{
		"crisp --runtime-endpoint unix://" + n.socket + " version":               "permission denied",
		"crispd wipe --all --config '' --root " + n.root + " --state " + n.state: "permission denied",
		"crispd --config '' --root " + n.root + " --state " + n.state:            "permission denied",
		"ls " + n.root + "/images":                                               "permission denied",
		"curl -sS -o /dev/null -w '%{http_code} ' " + stream + "; exit 1":        "404 ",
	} {
		if out, err := run(command); err == nil || !strings.Contains(strings.ToLower(out), says) {
			t.Errorf("user %d: %s: %q, %v, want %q", uid, command, out, err, says)
		}
	}
	// Its processes: the keeper, slirp4netns, the daemons, and what runs in the container.
	seen := map[string]bool{}
	for _, pid := range testenv.Processes(func([]string) bool { return true }) {
		var st syscall.Stat_t
		dir := "/proc/" + strconv.Itoa(pid)
		if syscall.Stat(dir, &st) != nil || st.Uid != uint32(n.owner) {
			continue
		}
		name, err := os.ReadFile(dir + "/comm")
		if err != nil {
			continue // it has ended
		}
		seen[strings.TrimSpace(string(name))] = true
		for _, command := range []string{"cat PROC/environ", "cat PROC/maps", "ls PROC/fd/", "ls PROC/root/", "readlink PROC/cwd; readlink -v PROC/ns/net",
			"kill -0 PID", "nsenter -U -m -n --target PID true"} {
			command = strings.NewReplacer("PROC", dir, "PID", strconv.Itoa(pid)).Replace(command)
			out, err := run(command)
			if out := strings.ToLower(out); err == nil || !strings.Contains(out, "permission denied") && !strings.Contains(out, "not permitted") {
				t.Errorf("user %d, %s: %s: %q, %v", uid, name, command, out, err)
			}
		}
	}
	for _, name := range []string{"crispd", "crisp-executor", "crisp-podinit", "slirp4netns", "testbin"} {
		if !seen[name] {
			t.Errorf("user %d has no process %s, but %v", n.owner, name, seen)
		}
	}
}
