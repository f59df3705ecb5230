package kubelet

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A random pod's status is compared when it has not changed for quiet, but not later than unrest
// after the pod has come to its state.
const (
	quiet  = 5 * time.Second
	unrest = time.Minute
)

// Random pods, LIVES of them, live and end with the agent as they do with the kubelet: the calls
// to the runtime and the statuses are the same, except for explained differences. SEED chooses
// other pods.
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
	l := &life{Rand: rand.New(rand.NewPCG(seed, seed))}
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
			t.Fatalf("%s is not in the records", m.name)
		}
		if left := known.without(compare(m.name, k, a)); len(left) > 0 {
			t.Errorf("SEED=%d, until %s: %s\n  %s", seed, m.until, m.text, strings.Join(left, "\n  "))
		}
	}
	known.log(t)
}

// explanationsOfLives are the intended differences of random pods.
var explanationsOfLives = []explanation{
	{of: `\S+ CreateContainer \S+ config\.envs order: .*`, why: "the kubelet goes through a map: its order is another one each time; the agent keeps the manifest's"},
	{of: `\S+-on-host status podIPs: kubelet 0, agent [12]`, why: "so it is with the address of a pod that has the node's"},
	{of: `\S+ (RunPodSandbox|CreateContainer) \S+ (config|sandbox_config)\.port_mappings(\[3\d{4}\]: kubelet absent, agent {.*}|: kubelet absent, agent \[({"container_port":3\d{4}(,"host_port":3\d{4})?},?)+\])`, why: "the kubelet tells the runtime nothing of ports of sidecars"},
	{of: `\S+ (RunPodSandbox|CreateContainer) \S+ \S+\.(uids|gids|uidMappings|gidMappings): kubelet \[{"host_id":\d+,"length":65536}\], agent \[{"host_id":\d+,"length":65536}\]`, why: "each takes a free range of the node's IDs where it likes"},
	{of: `\S+ (CreateContainer \S+ config\.mounts\[/volumes/v\d\]\.recursive_read_only: kubelet absent, agent true|status containers\.\w+\.mounts\[v\d\]\.recursiveReadOnly: kubelet "Disabled", agent "Enabled")`, why: "the kubelet without an API server knows no RuntimeClass, so no handler that makes mounts read-only recursively"},
	{of: `\S+ CreateContainer ([is]\d|broken|still)#\d config\.envs\[RESOURCE\d\]\.value: kubelet "0", agent "\d+"`, why: "without a limit it is the node's amount, but the kubelet forgets that for an init container that is named"},
	{of: `never-begins-\S+ status (reason: kubelet "", agent "FailedMount"|message: kubelet "", agent "pod \S+: MountVolume.SetUp failed for volume \S+ stat /no/such/directory: no such file or directory")`, why: "the kubelet says so in an event alone"},
	{of: `(crashes|is-killed|init-fails|rules|never-begins)-\S+ \w+ \w+#\d: kubelet (calls it, agent never|never, agent calls it)`, why: "how often a container that ends again and again has been started when its manifest goes is a matter of moments: the kubelet may come to say that it waits after some restarts more", race: true},
	{of: `(crashes|is-killed|init-fails|rules|never-begins)-\S+ status containers\.\w+\.restarts: kubelet \d, agent \d`, why: "likewise", race: true},
	{of: `(crashes|is-killed|init-fails|rules|never-begins)-\S+ status containers\.\w+\.state\.(exitCode: kubelet \d+, agent absent|(message|reason): kubelet "[^"]*", agent absent|waiting: kubelet (absent|"RunContainerError"), agent "CrashLoopBackOff")`, why: "the kubelet shows how a container ended, or that it did not start, until it looks at the pod again, which may be when the back-off is over; how the one before ended is the same", race: true},
	{of: `\S+ CreateContainer \S+ config\.mounts\[/volumes/v\d\]\.image_sub_path: kubelet "(sub|a/b)", agent absent`, why: "with an image among the volumes the kubelet names the sub path of every mount there, for which it is none"},
	{of: `\S+ StopContainer s\d#\d timeout: kubelet "[234]", agent "[234]"`, why: "a sidecar has what the others have left of the pod's grace period, in whole seconds", race: true},
	sideBySide(),
}

// sideBySide explains the order in which containers end that are stopped side by side; that of
// sidecars is the same.
func sideBySide() explanation {
	var of []string
	for _, sidecars := range []string{"", "s0", "s1", "s0 s1", "s1 s0"} {
		stops := `(StopContainer (c\d|other|still)#\d( \+ |, ))*`
		for _, name := range strings.Fields(sidecars) {
			stops += `StopContainer ` + name + `#\d( \+ StopContainer still#\d)?, ` // an init container delays no sidecar
		}
		of = append(of, fmt.Sprintf(`kubelet %[1]sStopPodSandbox sandbox#0, agent %[1]sStopPodSandbox sandbox#0`, stops))
	}
	return explanation{of: `\S+ order of stops: (` + strings.Join(of, "|") + `)`, why: "containers are stopped side by side: one that ends at once seems to come before the other", race: true}
}

// settles waits until the pod's status has been the same for some time, and returns it.
func (n *node) settles(name string, pod *v1.Pod) *v1.Pod {
	last, since := "", time.Now()
	n.waits(unrest, func() bool {
		p, err := n.pod(name)
		if err != nil || p == nil {
			return false
		}
		if now := text(told(p.Status)); now != last {
			last, since = now, time.Now()
		}
		pod = p
		return time.Since(since) >= quiet
	})
	return pod
}

func quantity(s string) *resource.Quantity { return new(resource.MustParse(s)) }
