package kubelet

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// The status of a random pod is compared once it has not changed for quiet, at the latest unrest
// after the pod has reached its state.
const (
	quiet  = 5 * time.Second
	unrest = time.Minute
)

// Random pods, LIVES of them, behave the same with the agent as with the kubelet: the calls to the
// runtime and the statuses are the same, except for explained differences. SEED selects other pods.
func TestSameRandomPods(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it runs containers")
	}
	if slowness > 1 {
		t.Skip("an emulated machine does not come to the end of forty lives")
	}
	if _, err := os.Stat(kubeletProgram()); err != nil {
		t.Skipf("the kubelet is not built (%v): make test-kubelet", err)
	}
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), "1"), 10, 64)
	check(t, err)
	count, err := strconv.Atoi(cmp.Or(os.Getenv("LIVES"), "40"))
	check(t, err)
	t.Logf("the pods are those of SEED=%d LIVES=%d", seed, count)
	l := newLife(seed)
	var list []manifest
	for i := range count {
		list = append(list, l.next(t, i))
	}
	records := map[string]map[string]*record{}
	for _, driver := range []string{"kubelet", "agent"} {
		t.Run(driver, func(t *testing.T) {
			s := sessionOf(t, driver, fmt.Sprintf("lives-%d-", seed), list)
			for _, line := range s.Missed {
				t.Errorf("%s: %s", driver, line)
			}
			records[driver] = recordsOf(t, s)
		})
	}
	if len(records) < 2 {
		return
	}
	known := newReasons(explanationsOfAll, explanationsOfLives)
	for _, m := range list {
		k, a := records["kubelet"][m.name], records["agent"][m.name]
		if k == nil || a == nil {
			t.Errorf("%s is not in the records", m.name)
			continue
		}
		if left := known.without(compare(m.name, k, a)); len(left) > 0 {
			t.Errorf("SEED=%d, until %s: %s\n  %s", seed, m.until, m.text, strings.Join(left, "\n  "))
		}
	}
	known.log(t)
}

// explanationsOfLives explain the intended differences of random pods.
var explanationsOfLives = []explanation{
	{of: `\S+ CreateContainer \S+ config\.envs order: .*`, why: "the kubelet iterates over a map, in random order; the agent keeps the manifest's order"},
	{of: `\S+-on-host status podIPs: kubelet 0, agent [12]`, why: "the standalone kubelet does not fill in the node's address, nor that of a pod on the node's network"},
	{of: `\S+ (RunPodSandbox|CreateContainer|PullImage) \S+ (config|sandbox_config)\.port_mappings(\[3\d{4}\]: kubelet absent, agent {.*}|: kubelet absent, agent \[({"container_port":3\d{4}(,"host_port":3\d{4})?},?)+\])`, why: "the kubelet does not pass the ports of sidecars to the runtime"},
	{of: `\S+ (RunPodSandbox|CreateContainer) \S+ \S+\.(uids|gids|uidMappings|gidMappings): kubelet \[{"host_id":\d+,"length":65536}\], agent \[{"host_id":\d+,"length":65536}\]`, why: "each chooses a free range of the node's IDs"},
	{of: `\S+ (CreateContainer \S+ config\.mounts\[/volumes/v\d\]\.recursive_read_only: kubelet absent, agent true|status containers\.\w+\.mounts\[v\d\]\.recursiveReadOnly: kubelet "Disabled", agent "Enabled")`, why: "the standalone kubelet knows no RuntimeClass, and so no handler that makes mounts recursively read-only"},
	{of: `\S+ CreateContainer ([is]\d|broken|still)#\d config\.envs\[RESOURCE\d\]\.value: kubelet "0", agent "\d+"`, why: "without a limit it is the node's amount, but not in the kubelet for an init container that is named"},
	{of: `never-begins-\S+ status (reason: kubelet "", agent "FailedMount"|message: kubelet "", agent "pod \S+: MountVolume.SetUp failed for volume \S+ stat /no/such/directory: no such file or directory")`, why: "the kubelet reports it only in an event"},
	{of: looping + `(CreateContainer|StartContainer|StopContainer|RemoveContainer|ExecSync) (c0|broken)#[1-9]: kubelet (calls it, agent never|never, agent calls it)`, why: "the number of restarts when the manifest is removed depends on timing: the kubelet may show the back-off only after more restarts", race: true},
	{of: looping + `status containers\.(c0|broken)\.restarts: kubelet \d, agent \d`, why: "likewise", race: true},
	{of: looping + `status containers\.(c0|broken)\.state\.(exitCode: kubelet \d+, agent absent|(message|reason): kubelet "[^"]*", agent absent|waiting: kubelet (absent|"RunContainerError"), agent "CrashLoopBackOff")`, why: "the kubelet shows how a container ended, or that it did not start, until its next sync of the pod, which may be after the back-off; how the previous container ended is the same", race: true},
	{of: `\S+ CreateContainer \S+ config\.mounts\[/volumes/v\d\]\.image_sub_path: kubelet "(sub|a/b)", agent absent`, why: "if one volume is an image the kubelet sets image_sub_path for every mount, although it only applies to images"},
	{of: `\S+ StopContainer s\d#\d timeout: kubelet "[234]", agent "[234]"`, why: "a sidecar gets the rest of the pod's grace period, in whole seconds", race: true},
	{of: orphans + `(StopContainer \w+#\d+ timeout: kubelet "2", agent "\d+"|ExecSync \w+#\d( the \dth)?: kubelet never, agent calls it)`, why: "a restarted kubelet gives a pod without a manifest two seconds and no hook; the agent keeps the pod's grace period and hooks"},
	{of: orphans + `order of stops: kubelet .*, agent (` + stops() + `|` + stops(`s\d`) + `|` + stops(`s\d`, `s\d`) + `)`, why: "the kubelet stops the containers of such a pod in any order"},
	{of: `\S+-comes-back(-on-host)? (CreateContainer \w+#0 config\.(annotations\.io\.kubernetes\.container\.restartCount: kubelet "1", agent "0"|log_path: kubelet "(\w+)/1\.log", agent "\w+/0\.log"|metadata\.attempt: kubelet 1, agent absent)|status containers\.\w+\.(last: kubelet {.*}, agent absent|restarts: kubelet 1, agent 0))`, why: "the kubelet continues to count attempts when a pod comes back, unless it has collected the old containers; the agent starts at 0", race: true},
	{of: `\S+-comes-back(-on-host)? (RunPodSandbox new\.sandbox#0 config|CreateContainer new\.\w+#0 sandbox_config)\.metadata\.attempt: kubelet 1, agent absent`, why: "the kubelet also continues to count attempts of the sandbox", race: true},
	{of: `\S+-driver-killed-pulling status podIPs: kubelet 0, agent 2`, why: "while the kubelet pulls an image for a pod it does not update the status, which has no address"},
	{of: `unready-\d+-driver-killed(-on-host)? status (conditions\.(ContainersReady|Ready)\.(message: kubelet "", agent "containers with unready status: \[c0\]"|reason: kubelet "", agent "ContainersNotReady"|status: kubelet "True", agent "False")|containers\.c0\.(ready|started): kubelet true, agent false)`, why: "a restarted kubelet takes a running container for started and ready until its startup probe has a result"},
	{of: `\S+-driver-killed-pulling(-on-host)? (CreateContainer|StartContainer|RemoveContainer) c[1-9]#0: kubelet (calls it, agent never|never, agent calls it)`, why: "crispd gives up on a registry that does not answer after 40 s, and the next containers start; not every run lasts that long", race: true},
	{of: `\S+-sandbox-(stopped|removed)(-meanwhile)?(-on-host)? (CreateContainer|StartContainer|StopContainer|RemoveContainer|ExecSync) ([is]\d|still|broken)#[01]( the \dth)?: kubelet (calls it, agent never|never, agent calls it)`, why: "in a new sandbox the kubelet continues to count attempts only for the first init container, as it has removed the others; the agent continues for each"},
	{of: `\S+-sandbox-stopped(-on-host)? StopContainer \w+#0: kubelet (calls it, agent never|never, agent calls it)`, why: "containers end while a sandbox is stopped, one after the other: a driver that looks meanwhile stops those that still run", race: true},
	{of: `\S+-edited-meanwhile-\w+ RunPodSandbox new\.sandbox#0( failed: kubelet true, agent absent| the 2th: kubelet calls it, agent never)`, why: "a restarted kubelet starts the new pod of a name while the old one ends, whose host ports are still in use", race: true},
	{of: `\S+-(driver-killed(-on-host)? status|(killed|sandbox-stopped)-meanwhile(-on-host)? later status) containers\.\w+\.mounts: kubelet absent, agent \[{.*}\]`, why: "a restarted kubelet does not show the mounts of a container that it did not start"},
	{of: `(ends|fails|late)-\d+-driver-killed(-on-host)? status podIPs: kubelet 0, agent 2`, why: "a restarted kubelet does not know the address of a pod that has ended"},
	sideBySide(),
}

const (
	// looping matches pods with a container that repeatedly ends and is restarted.
	looping = `(crashes|is-killed|init-fails|rules|never-begins)-\S+ `
	// orphans matches pods whose manifest had been removed when the driver was started again.
	orphans = `\S+-(edited-meanwhile-\w+|gone-meanwhile|driver-killed-ending)(-on-host)? `
)

// sideBySide explains the order of containers that are stopped concurrently. The order of sidecars
// is the same.
func sideBySide() explanation {
	var of []string
	for _, sidecars := range [][]string{nil, {"s0"}, {"s1"}, {"s0", "s1"}, {"s1", "s0"}} {
		of = append(of, fmt.Sprintf(`kubelet %[1]s, agent %[1]s`, stops(sidecars...)))
	}
	return explanation{of: `\S+ order of stops: (` + strings.Join(of, "|") + `)`, why: "containers are stopped concurrently: one that ends at once seems to be stopped before the other", race: true}
}

// stops matches the stops of a pod with these sidecars, which come last, one after the other.
func stops(sidecars ...string) string {
	all := `(StopPodSandbox sandbox#0, )?(StopContainer (c\d|other|still)#\d( \+ |, ))*` // StopPodSandbox is of the sandbox that it lost
	for _, name := range sidecars {
		all += `StopContainer ` + name + `#\d( \+ StopContainer still#\d)?, ` // sidecars do not wait for an init container
	}
	return all + `StopPodSandbox sandbox#[01]`
}

// settles waits until the pod's status has been the same for some time, and returns it. A pod that has
// ended still has a sandbox for a while, with a kubelet on a busy machine for longer than that.
func (n *node) settles(name string, pod *v1.Pod) *v1.Pod {
	last, since := "", time.Now()
	n.waits(unrest, func() bool {
		p, err := n.pod(name)
		if err != nil || p == nil {
			return false
		}
		over := p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
		_, sandbox := podutil.GetPodCondition(&p.Status, v1.PodReadyToStartContainers)
		stands := over && sandbox != nil && sandbox.Status == v1.ConditionTrue
		if now := text(comparedStatus(p.Status)); now != last || stands {
			last, since = now, time.Now()
		}
		pod = p
		return time.Since(since) >= quiet
	})
	return pod
}

func quantity(s string) *resource.Quantity { return new(resource.MustParse(s)) }
