package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/rootless"
	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/server/hooks"
)

// A finding is one requirement of crispd on a host. The consequence is printed only if it is
// missing.
type finding struct {
	what    string
	ok      bool
	follows string
	fatal   bool // crispd cannot run without it
}

// check prints what this host has and lacks. It fails (status 1) only if crispd could not run
// here; a missing feature is printed but is no failure.
func check(c *config.Config, out io.Writer) error {
	f := kernel.Probe()
	facts, err := hostFacts(c, f)
	if err == nil {
		_, err = handlers(context.Background(), c, facts, slog.New(slog.DiscardHandler))
	}
	noProgram := errors.Is(err, errNoProgram)
	if err != nil && !noProgram {
		return err
	}
	findings := slices.Concat(checkKernel(f), checkAppArmor(c, f), checkSELinux(c), checkCgroups(f, usesSystemd(c, f)), checkCapabilities(f), checkFiles(c), checkCNI(c), checkHandlers(context.Background(), c, usesSystemd(c, f)))
	lacks, fatal := report(out, findings)
	fmt.Fprintln(out, "\nas the node of a cluster (kubeadm, k3s):")
	nodeLacks, _ := report(out, checkNode(c, "/", f))
	switch {
	case fatal > 0:
		fmt.Fprintf(out, "\ncrispd cannot run on this host: %d missing, %d lacking\n", fatal, lacks)
		if noProgram {
			return err // with the line
		}
		return exitStatus(1)
	case lacks > 0:
		fmt.Fprintf(out, "\ncrispd can run on this host; %d lacking", lacks)
	default:
		fmt.Fprint(out, "\ncrispd has everything on this host")
	}
	if nodeLacks > 0 {
		fmt.Fprintf(out, "; %d lacking for a node of a cluster", nodeLacks)
	}
	fmt.Fprintln(out)
	return nil
}

// report prints findings, and counts the missing ones.
func report(out io.Writer, findings []finding) (lacks, fatal int) {
	for _, f := range findings {
		switch {
		case f.ok:
			fmt.Fprintf(out, "ok       %s\n", f.what)
		case f.fatal:
			fatal++
			fmt.Fprintf(out, "MISSING  %s\n         crispd cannot run: %s\n", f.what, f.follows)
		default:
			lacks++
			fmt.Fprintf(out, "lacking  %s\n         %s\n", f.what, f.follows)
		}
	}
	return lacks, fatal
}

func checkKernel(f kernel.Features) []finding {
	return []finding{
		{"Linux " + f.Release + " (5.12 or newer)", f.AtLeast(5, 12), "older kernels are not tested; recursive read-only mounts are refused", false},
		{"overlayfs", f.Overlay, "the root file system of every container is an overlay mount", true},
		{"pidfd_open(2)", f.AtLeast(5, 3), "containers are waited for and signalled by pidfd", true},
		{"recursive read-only mounts (mount_setattr, 5.12)", f.RecursiveRO, "recursive_read_only is refused and not advertised", false},
		{"exit codes by pidfd (PIDFD_GET_INFO, 6.15)", f.PidfdInfo, "if the executor itself crashes, each container that runs then is reported as 255, Unknown, whenever it ends", false},
		{"ID-mapped layers (5.19) and user namespaces", f.IDMap, "pods with user namespaces are not possible", false},
		{"seccomp filters", f.Seccomp, "RuntimeDefault confines nothing, Localhost profiles are refused", false},
	}
}

func checkCgroups(f kernel.Features, systemd bool) []finding {
	if f.Bare {
		list := checkDelegated(f)
		return append(list, finding{fmt.Sprintf("IDs for images and pods: %d users, %d groups (65536)", f.IDs.UID.Length, f.IDs.GID.Length), min(f.IDs.UID.Length, f.IDs.GID.Length) >= 1<<16,
			"images with files of other owners, and pods with other users or groups, are refused", false})
	}
	list := []finding{
		{"cgroup v2", f.CgroupV2, "cgroup v1 is used: no unified resources, no memory QoS, no pressure, kills by freezing", false},
		{"cgroup controllers: " + strings.Join(f.Controllers, " "), len(f.Controllers) > 0, "containers cannot be limited or counted", true},
		{"swap accounting", f.SwapLimit, "memory limits do not limit swap", false},
	}
	list = append(list, checkControllers(f)...)
	if systemd {
		list = append(list, finding{"systemd", f.Systemd, "cgroup_driver is systemd, and systemd does not run this host", true})
	}
	return list
}

func checkControllers(f kernel.Features) (list []finding) {
	for _, name := range []struct{ controller, follows string }{
		{"cpu", "cpu requests and limits are not enforced"},
		{"memory", "memory limits are not enforced, and out-of-memory kills not told"},
		{"pids", "the number of processes is not limited"},
		{"cpuset", "containers cannot be bound to CPUs"},
		{"hugetlb", "limits of huge pages are refused"},
	} {
		list = append(list, finding{"cgroup controller " + name.controller, f.Has(name.controller), name.follows, false})
	}
	return list
}

// checkDelegated reports which of the host's cgroups crispd may use in a user namespace.
func checkDelegated(f kernel.Features) []finding {
	if f.NoCgroups {
		follows := "crispd is in a user namespace, and uses none there: containers have no limits and no counters, and pods in the host's PID namespace are refused"
		if why := rootless.NoCgroups(); why != "" {
			follows += "; none was delegated: " + why
		}
		return []finding{{"the host's cgroups", false, follows, false}}
	}
	return append([]finding{{"cgroups delegated to crispd: " + strings.Join(f.Controllers, " "), true, "", false}}, checkControllers(f)...)
}

func checkCapabilities(f kernel.Features) []finding {
	list := []finding{{"root", os.Geteuid() == 0, "crispd makes namespaces, mounts and cgroups", true}}
	for _, c := range []struct {
		name    string
		number  int
		follows string
		fatal   bool
	}{
		{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN, "it makes namespaces and mounts", true},
		{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, "pods get no network of their own", false},
		{"CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE, "oom_score_adj is not lowered below crispd's own and hard limits are not raised: both are clamped", false},
		{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE, "namespaces of containers of other users cannot be entered: pid mode TARGET may fail", false},
		{"CAP_MKNOD", unix.CAP_MKNOD, "device nodes are bind mounts, and images with device nodes cannot be unpacked", false},
	} {
		list = append(list, finding{c.name, f.Can(c.number), c.follows, c.fatal})
	}
	return list
}

// checkFiles looks for programs: crisp's own are required, each of the others serves one
// feature.
func checkFiles(c *config.Config) []finding {
	executor, podinit := beside("crisp-executor"), beside("crisp-podinit")
	wrong := append(missing(c), image.Check(imageSettings(c))...)
	return []finding{
		{"crisp-executor " + executor, executor != "", "it starts every container; it belongs beside crispd or in ../libexec/crisp", true},
		{"crisp-podinit " + podinit, podinit != "", "pods that share their PID namespace cannot start; it belongs beside crispd or in ../libexec/crisp", false},
		program("nft", "the default network does not work: pods get no network without a configuration of the node's own"),
		checkpoints(),
		hookFiles(c),
		{"image policy " + policyPath(c), c.Image.Policy != "" || exists(policyPath(c)), "every image is accepted, signed or not", false},
		{"files about images", len(wrong) == 0, strings.Join(wrong, "\n         "), false},
	}
}

// hookFiles reports broken hook files before the first container runs into them.
func hookFiles(c *config.Config) finding {
	f := finding{"hooks in " + strings.Join(c.HooksDirs, ", "), true, "", true}
	remarks, err := hooks.Check(c.HooksDirs)
	if err != nil {
		f.ok, f.follows = false, "no container that they may concern can be made: "+err.Error()
	} else if len(remarks) > 0 {
		f.ok, f.follows, f.fatal = false, strings.Join(remarks, "\n         "), false
	}
	return f
}

func program(name, follows string) finding {
	path, err := exec.LookPath(name)
	if err != nil {
		return finding{"program " + name, false, follows, false}
	}
	return finding{"program " + path, true, "", false}
}

// checkpoints asks CRIU whether it works here: it supports only kernels older than itself. It
// can check only as root.
func checkpoints() finding {
	const follows = "containers and pods cannot be checkpointed or restored"
	f := program("criu", follows)
	if !f.ok || os.Geteuid() != 0 {
		return f
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "criu", "check").CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		f.ok, f.what = false, f.what+" that works on this kernel"
		f.follows = fmt.Sprintf("%s: criu check: %v: %s", follows, err, strings.Join(lines[:min(2, len(lines))], "; "))
	}
	return f
}

func policyPath(c *config.Config) string {
	return cmp.Or(c.Image.Policy, "/etc/containers/policy.json")
}

func checkCNI(c *config.Config) []finding {
	if rootless.Entered() {
		if err := rootless.Lacks(); err != nil {
			return []finding{{"slirp4netns and /dev/net/tun", false, "crispd is in the machine's network, where an ordinary user can make no bridge: pods need hostNetwork: " + err.Error(), false}}
		}
	}
	found := false
	for _, pattern := range []string{"*.conflist", "*.conf", "*.json"} {
		files, _ := filepath.Glob(filepath.Join(c.CNI.ConfDir, pattern))
		found = found || len(files) > 0
	}
	const none = "pods get no network, and the node is not ready, until there is one"
	follows := "pods get crisp's own default network"
	switch c.CNI.DefaultNetwork {
	case config.Off:
		follows = none + ": cni.default_network is off"
	case config.Automatic:
		follows += "; but while the kubelet of a cluster is connected, " + none
	}
	list := []finding{{"network configuration in " + c.CNI.ConfDir, found, follows, false}}
	if found || c.CNI.DefaultNetwork == config.Off {
		return list
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	droppers, err := network.Droppers(ctx, instance(c))
	if err != nil { // no nft, or not root: reported above
		return list
	}
	return append(list, finding{"firewall that lets pods through", len(droppers) == 0,
		"pods reach only this host, and their host ports are unreachable: accept what comes from and goes to crisp's bridge in " + strings.Join(droppers, ", "), false})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// missing returns the files about images that the configuration names and the host lacks, with
// the consequences. Files that it does not name need not exist.
//
// crispd runs without them: provisioning may add them later. But a typing error must not go
// unnoticed: without its policy the node accepts every image.
func missing(c *config.Config) []string {
	type file struct{ key, path, follows string }
	files := []file{
		{"image.registries_conf", c.Image.RegistriesConf, "registries are asked as if it were empty"},
		{"image.policy_dir", c.Image.PolicyDir, "every namespace has the node's policy"},
		{"image.registries_dir", c.Image.RegistriesDir, "signatures are looked for nowhere"},
		{"image.auth_file", c.Image.AuthFile, "the node has no credentials"},
		{"image.auth_dir", c.Image.AuthDir, "no namespace has credentials of its own"},
		{"image.decryption_keys_path", c.Image.DecryptionKeysPath, "no encrypted image can be pulled"},
	}
	for _, dir := range c.Image.HostsDirs {
		files = append(files, file{"image.hosts_dirs", dir, "there is no hosts.toml"})
	}
	var list []string
	for _, f := range files {
		if f.path != "" && c.Origin(f.key) != "default" && !exists(f.path) {
			list = append(list, fmt.Sprintf("%s: %s: there is no %s: %s", c.Origin(f.key), f.key, f.path, f.follows))
		}
	}
	return list
}

// warnOfFiles logs what is wrong with the files of this node that pods will run into.
func warnOfFiles(c *config.Config, log *slog.Logger) {
	for _, text := range missing(c) {
		log.Warn("configured file is missing", "err", text)
	}
	remarks, err := hooks.Check(c.HooksDirs)
	for _, text := range remarks {
		log.Warn("hook file has a key without effect", "err", text)
	}
	if err != nil {
		log.Warn("hook files are broken: containers that they may concern cannot be made", "err", err)
	}
}

// checkNode reports what a kubelet and its cluster need of a node and crispd does not. It looks
// for files below root, "/".
func checkNode(c *config.Config, root string, f kernel.Features) []finding {
	list := []finding{
		{"net.ipv4.ip_forward = 1", setting(root, "net/ipv4/ip_forward") == "1",
			"pods reach nothing beyond their node, and kubeadm refuses the node: a line in /etc/sysctl.d", false},
		bridgeFilter(root),
		{"module nf_conntrack", exists(filepath.Join(root, "proc/sys/net/netfilter/nf_conntrack_max")),
			"kube-proxy ends when it sets the limits of connections: a line in /etc/modules-load.d", false},
		{"no swap", !swaps(root),
			"the kubelet does not start, unless failSwapOn is false in its configuration: swapoff -a, and /etc/fstab", false},
	}
	if !f.CgroupV2 && !f.NoCgroups {
		list = append(list, finding{"cgroup v2 for the kubelet", false, "a kubelet of 1.35 or newer does not start, unless failCgroupV1 is false in its configuration", false})
	}
	return append(list, kubeletMetrics(c, root)...)
}

// setting returns a value of sysctl(8), "" if the kernel has none.
func setting(root, name string) string {
	data, _ := os.ReadFile(filepath.Join(root, "proc/sys", name))
	return strings.TrimSpace(string(data))
}

// bridgeFilter reports whether traffic between pods over a bridge passes the iptables rules that
// implement services.
func bridgeFilter(root string) finding {
	const follows = "in a network that is a bridge (flannel's, crisp's own) a pod does not reach a service by a pod of its own node: "
	switch setting(root, "net/bridge/bridge-nf-call-iptables") {
	case "1":
		return finding{"module br_netfilter", true, "", false}
	case "":
		return finding{"module br_netfilter", false, follows + "a line in /etc/modules-load.d", false}
	}
	return finding{"net.bridge.bridge-nf-call-iptables = 1", false, follows + "a line in /etc/sysctl.d", false}
}

func swaps(root string) bool {
	data, _ := os.ReadFile(filepath.Join(root, "proc/swaps"))
	return strings.Count(string(data), "\n") > 1 // the first line is the heading
}

// cadvisorDefault is the socket that cAdvisor uses without the flag.
const cadvisorDefault = "/run/containerd/containerd.sock"

// kubeletMetrics reports whether running kubelets will name containers in their metrics; it
// reports nothing if none runs.
func kubeletMetrics(c *config.Config, root string) []finding {
	var list []finding
	processes, _ := filepath.Glob(filepath.Join(root, "proc/[0-9]*/comm"))
	for _, comm := range processes {
		name, err := os.ReadFile(comm)
		if err != nil || strings.TrimSpace(string(name)) != "kubelet" {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(comm), "cmdline"))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(comm)))
		args := strings.Split(string(line), "\x00")
		list = append(list, finding{
			"metrics of pods by the kubelet (process " + strconv.Itoa(pid) + ")", namesContainers(c, root, args),
			"/metrics/cadvisor names no pod, and /stats/summary has no network: start it with --containerd=" + c.CAdvisorSocket +
				" (before 1.37), or set cadvisor_socket to " + cadvisorDefault + ", or its feature gate PodAndContainerStatsFromCRI", false,
		})
	}
	return list
}

// fromCRI is the kubelet's feature gate in a flag and in its configuration.
var fromCRI = regexp.MustCompile(`PodAndContainerStatsFromCRI"?\s*[=:]\s*"?true`)

// namesContainers reports whether a kubelet with these arguments asks crispd about its
// containers.
func namesContainers(c *config.Config, root string, args []string) bool {
	asked := cadvisorDefault
	for i, arg := range args {
		name, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		switch name {
		case "--containerd":
			asked = value
		case "--config":
			if data, err := os.ReadFile(filepath.Join(root, value)); err == nil && fromCRI.Match(data) {
				return true
			}
		}
	}
	return asked == c.CAdvisorSocket || slices.ContainsFunc(args, fromCRI.MatchString)
}
