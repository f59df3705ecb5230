package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/kernel"
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
	if err != nil {
		return err
	}
	findings := slices.Concat(checkKernel(f), checkAppArmor(c, f), checkSELinux(c), checkCgroups(f, usesSystemd(c, f)), checkCapabilities(f), checkFiles(c), checkCNI(c))
	lacks, fatal := report(out, findings)
	fmt.Fprintln(out, "\nas the node of a cluster (kubeadm, k3s):")
	nodeLacks, _ := report(out, checkNode(c, "/", f))
	switch {
	case fatal > 0:
		fmt.Fprintf(out, "\ncrispd cannot run on this host: %d missing, %d lacking\n", fatal, lacks)
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
	list := []finding{
		{"cgroup v2", f.CgroupV2, "cgroup v1 is used: no unified resources, no memory QoS, no pressure, kills by freezing", false},
		{"cgroup controllers: " + strings.Join(f.Controllers, " "), len(f.Controllers) > 0, "containers cannot be limited or counted", true},
		{"swap accounting", f.SwapLimit, "memory limits do not limit swap", false},
	}
	for _, name := range []struct{ controller, follows string }{
		{"cpu", "cpu requests and limits are not enforced"},
		{"memory", "memory limits are not enforced, and out-of-memory kills not told"},
		{"pids", "the number of processes is not limited"},
		{"cpuset", "containers cannot be bound to CPUs"},
		{"hugetlb", "limits of huge pages are refused"},
	} {
		list = append(list, finding{"cgroup controller " + name.controller, f.Has(name.controller), name.follows, false})
	}
	if systemd {
		list = append(list, finding{"systemd", f.Systemd, "cgroup_driver is systemd, and systemd does not run this host", true})
	}
	return list
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
	return []finding{
		{"crisp-executor " + executor, executor != "", "it starts every container; it belongs beside crispd or in ../libexec/crisp", true},
		{"crisp-podinit " + podinit, podinit != "", "pods that share their PID namespace cannot start; it belongs beside crispd or in ../libexec/crisp", false},
		program("nft", "the default network does not work: pods get no network without a configuration of the node's own"),
		checkpoints(),
		hookFiles(c),
		{"image policy " + policyPath(c), c.Image.Policy != "" || exists(policyPath(c)), "every image is accepted, signed or not", false},
		imageFiles(c),
	}
}

// imageFiles reports files that are broken or missing, and settings in hosts.toml
// that have no effect.
func imageFiles(c *config.Config) finding {
	wrong := append(missing(c), image.Check(imageSettings(c))...)
	return finding{"files about images", len(wrong) == 0, strings.Join(wrong, "\n         "), false}
}

// hookFiles reports broken hook files before the first container runs into them.
func hookFiles(c *config.Config) finding {
	f := finding{"hooks in " + strings.Join(c.HooksDirs, ", "), true, "", true}
	if err := hooks.Check(c.HooksDirs); err != nil {
		f.ok, f.follows = false, "no container can be made: "+err.Error()
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
		return f
	}
	f.what += " (with it containers start slower: CRIU needs the mounts that libcontainer makes)"
	return f
}

func policyPath(c *config.Config) string {
	return cmp.Or(c.Image.Policy, "/etc/containers/policy.json")
}

func checkCNI(c *config.Config) []finding {
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
		"pods reach only this host, and nobody reaches their host ports: accept what comes from and goes to crisp's bridge in " + strings.Join(droppers, ", "), false})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
