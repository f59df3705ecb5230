package test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Containers see and get what their manifests say, whatever the environment of
// crispd and of the agent.
func TestAgentInside(t *testing.T) {
	t.Setenv("CRISP_LEAK", "from the host")
	n, _ := startNode(t)
	resolv := filepath.Join(n.dir, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.53\nsearch node.example\noptions ndots:2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := labOn(t, n, "--cluster-dns", "10.9.0.10", "--cluster-domain", "c.test", "--resolv-conf", resolv)
	podsResolve(t, l)
	podsAreScored(t, l)
	containersAreConfined(t, l)
	containersAreExact(t, l)
	quotasAreOptional(t, l)
}

// podsResolve: the name servers that each DNS policy gives.
func podsResolve(t *testing.T, l *lab) {
	const own = "server 192.0.2.53, search node.example, option ndots:2"
	const cluster = "server 10.9.0.10, search default.svc.c.test svc.c.test c.test node.example, option ndots:5"
	tests := []struct{ name, spec, want string }{
		{"default", "dnsPolicy: Default", own},
		{"unsaid", "hostIPC: false", cluster},
		{"none", "dnsPolicy: None\n  dnsConfig: {nameservers: [192.0.2.1], searches: [x.example], options: [{name: rotate}]}", "server 192.0.2.1, search x.example, option rotate"},
		{"hostnet", "hostNetwork: true", own},
		{"hostfirst", "hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet", cluster},
	}
	for _, test := range tests {
		l.pick(t, test.name).write("  " + test.spec + "\n  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]\n")
	}
	for _, test := range tests {
		pod := l.pick(t, test.name)
		pod.awaitReady()
		got := map[string]string{}
		for line := range strings.Lines(pod.exec("app", "cat", "/etc/resolv.conf")) {
			key, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			got[key] = rest
		}
		if text := fmt.Sprintf("server %s, search %s, option %s", got["nameserver"], got["search"], got["options"]); text != test.want {
			t.Errorf("%s: %s, want %s", test.name, text, test.want)
		}
	}
	l.clear()
}

// podsAreScored: who is ended first when the machine runs out of memory.
func podsAreScored(t *testing.T, l *lab) {
	total, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	kib, err := strconv.ParseInt(regexp.MustCompile(`MemTotal: +(\d+) kB`).FindStringSubmatch(string(total))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	half := kib << 10 / 2
	// Without CAP_SYS_RESOURCE nothing may be scored lower than crispd is.
	least := int64(-1000)
	if !hasCapability(t, 24) {
		own, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			t.Fatal(err)
		}
		if least, err = strconv.ParseInt(strings.TrimSpace(string(own)), 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name, resources string
		want            int64
	}{
		{"effort", "{}", 1000},
		{"guaranteed", "{limits: {cpu: 1, memory: 32Mi}}", -997},
		{"half", fmt.Sprintf("{requests: {memory: %d}}", half), 1000 - 1000*half/(kib<<10)},
	}
	for _, test := range tests {
		l.pick(t, test.name).write("  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], resources: " + test.resources + "}]\n")
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pod := l.pick(t, test.name)
			pod.awaitReady()
			if got, want := strings.TrimSpace(pod.exec("app", "cat", "/proc/1/oom_score_adj")), strconv.FormatInt(max(test.want, least), 10); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			if test.want < least {
				t.Skipf("needs CAP_SYS_RESOURCE: instead of %d the score is crispd's own, %d", test.want, least)
			}
		})
	}
	l.clear()
}

// hasCapability reads capabilities(7) of this process, and so of what it starts.
func hasCapability(t *testing.T, bit int) bool {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	set, err := strconv.ParseUint(regexp.MustCompile(`CapEff:\s+(\w+)`).FindStringSubmatch(string(data))[1], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return set&(1<<bit) != 0
}

// containersAreConfined: system calls are filtered by default, by a profile of the
// node, or not.
func containersAreConfined(t *testing.T, l *lab) {
	dir := filepath.Join(l.n.dir, "agent", "seccomp")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const noGroups = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["getgroups"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}`
	if err := os.WriteFile(filepath.Join(dir, "no-groups.json"), []byte(noGroups), 0o644); err != nil {
		t.Fatal(err)
	}
	l.run(t, "confined", `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: usual, image: IMAGE, args: [sleep, for-ever]}
  - {name: free, image: IMAGE, args: [sleep, for-ever], securityContext: {seccompProfile: {type: Unconfined}}}
  - {name: own, image: IMAGE, args: [sleep, for-ever], securityContext: {seccompProfile: {type: Localhost, localhostProfile: no-groups.json}}}
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		for name, want := range map[string]string{"usual": "2", "free": "0", "own": "2"} {
			status := l.exec(name, "cat", "/proc/1/status")
			if got := regexp.MustCompile(`Seccomp:\s+(\d)`).FindStringSubmatch(status); got == nil || got[1] != want {
				t.Errorf("%s: Seccomp is %v, want %s", name, got, want)
			}
		}
		l.exec("usual", "ids")
		_, id, _ := strings.Cut(l.status("own").ContainerID, "://")
		resp, err := l.n.runtime().ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"/testbin", "ids"}, Timeout: 20})
		if err != nil || resp.ExitCode == 0 || !strings.Contains(string(resp.Stderr), "operation not permitted") {
			t.Errorf("against the node's profile it told its groups: %v, %v", resp, err)
		}
	})
}

// containersAreExact: arguments and environment are those of the manifest, to the
// byte, and the runtime's records are of now and of images that it has.
func containersAreExact(t *testing.T, l *lab) {
	random := rand.New(rand.NewPCG(1, 2))
	letters := []rune("ab '\"\\$()*?[]{}<>|&;~#!%^`-=\t\nä漢🙂")
	args := []string{"/testbin", "sleep", "for-ever", ""}
	for range 60 {
		var b strings.Builder
		for range random.IntN(12) {
			b.WriteRune(letters[random.IntN(len(letters))])
		}
		args = append(args, b.String())
	}
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = strings.ReplaceAll(a, "$", "$$") // or it may be a variable
	}
	list, err := json.Marshal(quoted)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	l.run(t, "exact", `
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: IMAGE
    command: `+string(list)+`
    env: [{name: lower, value: "a b"}, {name: UPPER, value: "x=$(lower)"}, {name: EMPTY}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		if got, want := l.exec("app", "cat", "/proc/1/cmdline"), strings.Join(args, "\x00")+"\x00"; got != want {
			t.Errorf("arguments %q\nwant      %q", got, want)
		}
		env := strings.Split(strings.TrimSuffix(l.exec("app", "cat", "/proc/1/environ"), "\x00"), "\x00")
		slices.Sort(env)
		i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "PATH=") })
		if i < 0 {
			t.Fatalf("no PATH in %q", env)
		}
		env[i] = "PATH="
		if want := []string{"EMPTY=", "HOME=/", "HOSTNAME=exact", "PATH=", "UPPER=x=a b", "lower=a b"}; !slices.Equal(env, want) {
			t.Errorf("environment %q, want %q", env, want)
		}

		images, err := cri.NewImageServiceClient(l.n.conn).ListImages(t.Context(), &cri.ListImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range l.containers("") {
			if !slices.ContainsFunc(images.Images, func(i *cri.Image) bool { return i.Id == c.ImageId }) {
				t.Errorf("the container is of image %q, there are %v", c.ImageId, images.Images)
			}
			if at := time.Unix(0, c.CreatedAt); at.Before(begun) || at.After(time.Now()) {
				t.Errorf("the container was created at %v", at)
			}
		}
		if at := time.Unix(0, l.sandboxes()[0].CreatedAt); at.Before(begun) || at.After(time.Now()) {
			t.Errorf("the sandbox was created at %v", at)
		}
	})
}

// quotasAreOptional: a limit of CPU is a quota of the container's cgroup, unless
// the agent was told that there are none.
func quotasAreOptional(t *testing.T, l *lab) {
	const half = "\n  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], resources: {limits: {cpu: 500m}}}]\n"
	check := func(want string) func(*testing.T, *lab) {
		return func(t *testing.T, l *lab) {
			l.awaitReady()
			if got := l.quota(l.status("app")); got != want {
				t.Errorf("quota %s, want %s", got, want)
			}
		}
	}
	l.run(t, "half", half, check("50000/100000"))
	l.end(syscall.SIGTERM)
	l.flags = append(l.flags, "--no-cpu-quota")
	l.start()
	l.run(t, "whole", half, check("none"))
}

// quota is what the kernel gives a running container, in the same words on cgroup
// v1 and v2.
func (l *lab) quota(s v1.ContainerStatus) string {
	l.t.Helper()
	_, id, _ := strings.Cut(s.ContainerID, "://")
	resp, err := l.n.runtime().ContainerStatus(l.t.Context(), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		l.t.Fatal(err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(resp.Info["info"]), &info); err != nil || info.Pid == 0 {
		l.t.Fatalf("no process: %v, %v", resp.Info, err)
	}
	dirs, err := cgroupsOf(info.Pid)
	if err != nil {
		l.t.Fatal(err)
	}
	text := ""
	if dir := dirs["cpu"]; dir != "" {
		text = string(read(l.t, filepath.Join(dir, "cpu.cfs_quota_us"))) + " " + string(read(l.t, filepath.Join(dir, "cpu.cfs_period_us")))
	} else {
		text = string(read(l.t, filepath.Join(dirs[""], "cpu.max")))
	}
	words := strings.Fields(text)
	if words[0] == "-1" || words[0] == "max" {
		return "none"
	}
	return words[0] + "/" + words[1]
}
