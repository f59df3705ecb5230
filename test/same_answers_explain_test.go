package test

import "regexp"

// An answerReason explains lines of a difference.
type answerReason struct {
	reason string
	diff   *regexp.Regexp
}

func because(reason, diff string) answerReason {
	return answerReason{reason, regexp.MustCompile("^(?:containerd|crispd) only: (?:" + diff + ")$")}
}

// answerReasons are the differences of TestSameAnswers from containerd 2.3.
var answerReasons = []answerReason{
	because("CRI's swap limit is what the client has asked for; containerd shows what it made of none",
		`\w+ (?:status\.status\.)?resources\.linux(?: \{\}|\.memory_swap_limit_in_bytes=\d+)`),
	because("containers that do not run have the writable layer in ContainerStats, and are not in the list; containerd refuses the one and lists it",
		`(?:created|exited|killed) (?:in stats: [01] ok|stats: refused|stats\.stats\.(?:attributes|writable_layer)\..*)`),
	because("a pod that is not ready has statistics: the kubelet's list of them would fail", `not ready pod stats(?:: refused|\.stats\..*)`),
	because("an update of what has exited changes nothing, and is refused, as with CRI-O", `(?:exited|killed) update: (?:ok|refused)`),
	because("available memory is that below a limit, and there is none", `\w+ (?:pod )?stats\.stats\.(?:linux\.)?memory\.available_bytes set`),
	because("containerd measures in the background, and has no swap and I/O",
		`\w+ (?:pod )?stats\.stats\.(?:linux\.)?(?:cpu\.usage_nano_cores|io\.timestamp|swap\.\w+|writable_layer\.timestamp) set`),
	because("paths of the stores", `\w+ stats\.stats\.writable_layer\.fs_id\.mountpoint=.*`),
	because("pods have an IPv6 address by default", `\w+ pod\.status\.network\.additional_ips\[\]\.ip set`),
	because("statuses have the time and those of the containers, which the kubelet's evented PLEG needs", `[\w ]+ pod\.timestamp set`),
	because("a pod that is being stopped is not ready, and has lost its address when that is done",
		`event \d CONTAINER_STOPPED_EVENT of <(?:plain|p)>: SANDBOX_\w+, address \w+, .*`),
	because("Create refuses what Start would, or containerd's programs get something else than was asked for",
		`(?:create|start|end of) (?:log above|odd variable|relative cwd): .*`),
	because("an attach must match the container's terminal, says CRI", `attach (?:plain as tty|tty as none): .*`),
	because("the end of a client's input ends no terminal, as with CRI-O", `attach tty: .*`),
	because("text for the pod's files, ports and namespaces is checked", `pod, (?:bad dns|bad port|odd hostname|target): \w+`),
	because("without AppArmor its default profile is none; kubelets refuse such pods", `container, apparmor default: \w+`),
	because("a sub path of an image may be a file", `container, image, a file: \w+`),
	because("the configuration that the pod was made with will do", `container, no sandbox config: \w+`),
	because("an unknown capability is an error; runc drops it with a warning", `container, odd capability: \w+`),
	because("the request names a container that there is not, but is about another", `container, unknown target: \w+`),
}
