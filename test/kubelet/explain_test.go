package kubelet

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// An explanation has the reason of the differences that it matches. A race occurs only in some
// runs, or on some nodes.
type explanation struct {
	of   string // regular expression for whole lines, see compare
	why  string
	race bool
}

// explanationsOfAll explain the intended differences of all pods.
var explanationsOfAll = []explanation{
	{of: `\S+ \w+ \S+ (config\.|sandbox_config\.|image\.|config\.mounts\[\S+\]\.image\.)?annotations\.io\.crisp\.(config\.file|pod\.(dir|containers|initContainers|restartPolicy)|container\.backoff): kubelet absent, agent "[^"]*"`, why: "the agent finds its pods again by these annotations, without the manifest"},
	{of: `\S+ CreateContainer \S+ config\.annotations\.io\.crisp\.log\.max-(size|files): kubelet absent, agent "\d+"`, why: "the agent has crispd keep logs to their limit; the kubelet looks at their sizes each ten seconds"},
	{of: `\S+ \w+ \S+ (config\.|sandbox_config\.)?labels\.io\.crisp\.(pod\.source|agent): kubelet absent, agent "[^"]*"`, why: "several agents may share a runtime: each labels its objects"},
	{of: `.*annotations\.kubernetes\.io/config\.seen: kubelet "HASH", agent absent`, why: "when a manifest was first seen is not a property of the pod; the agent's file is in io.crisp.config.file"},
	{of: `\S+ CreateContainer \S+ config\.mounts\[/etc/resolv\.conf\]: kubelet absent, agent {.*}`, why: "the agent's pods follow the node's resolv.conf; the kubelet's keep what it was when they began"},
	{of: `.*hugepage_limits order: .*`, why: "the sizes are a set; the kubelet has them in the order of readdir: nodes with one size show no difference", race: true},
	{of: `.* status hostIPs: kubelet 0, agent [12]`, why: "the standalone kubelet does not fill in its own addresses; the agent does"},
}

// explanations explain the intended differences of the pods in testdata.
var explanations = []explanation{
	{of: `(env-values|env-fields|env-resources) CreateContainer .*envs order: .*`, why: "the kubelet iterates over a map, in random order; the agent keeps the manifest's order", race: true},
	{of: `(host-network|dns-host-net) status podIPs: kubelet 0, agent [12]`, why: "the standalone kubelet does not fill in the node's address, nor that of a pod on the node's network"},
	{of: `dns-none (RunPodSandbox|CreateContainer) .*dns_config\.options: kubelet \["(rotate|ndots:3)","(rotate|ndots:3)"\], agent \["ndots:3","rotate"\]`, why: "the kubelet also keeps the options of resolv.conf in a map", race: true},
	{of: `(crashes|crashes-on-failure|exits-always|init-fails|no-such-program|post-start-fails) \w+ \w+#([1-4]: kubelet calls it, agent never|[12]: kubelet never, agent calls it)`, why: "the number of restarts when the manifest is removed depends on timing: the kubelet shows the back-off after the first or a later restart", race: true},
	{of: `(crashes|crashes-on-failure|exits-always|init-fails|no-such-program|post-start-fails) status containers\.\w+\.restarts: kubelet [1-4], agent [12]`, why: "likewise", race: true},
	{of: `(empty-dir|share-pid|burstable-mixed|seccomp-mixed) order of stops: kubelet (StopContainer [abc]#0( \+ |, ))+StopPodSandbox sandbox#0, agent (StopContainer [abc]#0( \+ |, ))+StopPodSandbox sandbox#0`, why: "containers are stopped concurrently: one that ends at once seems to be stopped before the other", race: true},
	{of: `sidecar StopContainer proxy#0 timeout: kubelet "[45]", agent "[45]"`, why: "a sidecar gets the rest of the pod's grace period, in whole seconds", race: true},
	{of: `too-big status (reason|message): kubelet "(UnexpectedAdmissionError|Pod was rejected: Unexpected error while attempting to recover from admission failure: preemption.*)", agent "(OutOfcpu|Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: \d+, capacity: \d+)"`, why: "to the kubelet each static pod is critical, so it looks for pods to preempt, and finds none; the agent uses the priority"},
	{of: `proc-mount status (phase: kubelet "", agent "Failed"|reason: kubelet "", agent "ProcMountForbidden"|message: kubelet "not listed", agent "Pod was rejected: container main has procMount Unmasked, which needs hostUsers false"|qos: kubelet "", agent "BestEffort")`, why: "the kubelet ignores an invalid manifest; the agent shows the pod, and why it was rejected"},
	{of: `user-namespace (RunPodSandbox|CreateContainer) \S+ \S+\.(uids|gids|uidMappings|gidMappings): kubelet \[{"host_id":\d+,"length":65536}\], agent \[{"host_id":\d+,"length":65536}\]`, why: "each chooses a free range of the node's IDs: the kubelet a random one, the agent the first"},
}

// reasons counts the uses of each explanation.
type reasons struct {
	list     []explanation
	patterns []*regexp.Regexp
	used     []int
}

func newReasons(tables ...[]explanation) *reasons {
	e := &reasons{list: slices.Concat(tables...)}
	for _, x := range e.list {
		e.patterns = append(e.patterns, regexp.MustCompile("^(?:"+x.of+")$"))
	}
	e.used = make([]int, len(e.list))
	return e
}

// without returns the lines that no explanation matches. Explanations also match lines about a
// pod's replacement, and about a status after a turn.
func (e *reasons) without(lines []string) (left []string) {
	for _, line := range lines {
		same := strings.NewReplacer(" new.", " ", "+ new.", "+ ", " later ", " ").Replace(line)
		if i := slices.IndexFunc(e.patterns, func(p *regexp.Regexp) bool { return p.MatchString(line) || p.MatchString(same) }); i >= 0 {
			e.used[i]++
		} else {
			left = append(left, line)
		}
	}
	return left
}

func (e *reasons) log(t *testing.T) {
	for i, x := range e.list {
		t.Logf("%4d × %s", e.used[i], x.why)
	}
}

// unused fails for explanations without a match.
func (e *reasons) unused(t *testing.T) {
	for i, x := range e.list {
		if e.used[i] == 0 && !x.race {
			t.Errorf("nothing differs as explained by: %s (%s)", x.why, x.of)
		}
	}
}
