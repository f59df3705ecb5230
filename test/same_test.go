package test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/testenv"
)

const (
	sameCgroup = "same" // the parent of all cgroups
	sameEnd    = "that is all"
)

// Random pods are run on crispd and on Debian's containerd, and the process in each, and one that
// is executed beside it, print what they see of the kernel (testbin's "view"). A difference that
// is not in sameDifferences, with its reason, fails. SAME is how many pods there are, and SEED
// draws others.
func TestSameContainers(t *testing.T) {
	testenv.Need(t, "namespaces") // with systemd, the parents of cgroups would differ
	peer := startContainerd(t)
	number := func(name string, otherwise uint64) uint64 {
		if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
			return n
		}
		return otherwise
	}
	base := sameSources(t)
	t.Cleanup(func() { removeCgroups(sameCgroup) })
	// What the peer keeps when a pod has gone, as its bridge, is there before ours looks what there is.
	warm := (&drawer{rand.New(rand.NewPCG(0, 0)), base}).twin("warm")
	warm.sandbox.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_POD
	warm.sandbox.Hostname = "warm"
	seesOn(t, peer, warm)
	ours, _ := startNode(t)
	seed, explained := number("SEED", 1), map[string]int{}
	for i := range number("SAME", 10) {
		d := &drawer{rand.New(rand.NewPCG(seed, i)), base}
		tw := d.twin(fmt.Sprintf("twin-%d", i))
		for _, diff := range sameDifference(seesOn(t, ours, tw), seesOn(t, peer, tw)) {
			if known := explainSame(diff, tw); known != nil {
				explained[known.reason]++
				continue
			}
			config, _ := protojson.Marshal(tw.container)
			pod, _ := protojson.Marshal(tw.sandbox)
			t.Errorf("SEED=%d, pod %d: %s\npod: %s\ncontainer: %s", seed, i, diff, pod, config)
		}
	}
	for reason, n := range explained {
		t.Logf("%d times: %s", n, reason)
	}
}

// sameSources makes the sources of mounts, see drawer.
func sameSources(t *testing.T) string {
	base := t.TempDir()
	src := filepath.Join(base, "src")
	for _, dir := range []string{src, filepath.Join(src, "sub")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID, "size=1m,mode=755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
		if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(src, "file"), []byte("text\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return base
}

// seesOn runs a pod and returns what its processes see, a fact a line, in the words that are the
// same on all runtimes.
func seesOn(t *testing.T, n *node, tw twin) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tw = twin{proto.CloneOf(tw.sandbox), proto.CloneOf(tw.container)}
	tw.sandbox.LogDirectory = filepath.Join(n.dir, "logs", tw.sandbox.Metadata.Name)
	run, err := n.runtime().RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: tw.sandbox})
	if err != nil {
		return []string{"no sandbox " + err.Error()}
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		_, err := n.runtime().StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: run.PodSandboxId})
		if err == nil {
			_, err = n.runtime().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: run.PodSandboxId})
		}
		if err != nil {
			t.Error(err)
		}
	}()
	made, err := n.runtime().CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: run.PodSandboxId, Config: tw.container, SandboxConfig: tw.sandbox})
	if err == nil {
		_, err = n.runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId})
	}
	if err != nil {
		return []string{"no container " + err.Error()}
	}
	log := filepath.Join(tw.sandbox.LogDirectory, "c.log")
	var text []byte
	for ; !bytes.Contains(text, []byte(" "+sameEnd)); time.Sleep(5 * time.Millisecond) {
		if text, err = os.ReadFile(log); ctx.Err() != nil {
			t.Fatalf("a container does not come to its end: %v\n%s", err, text)
		}
		st, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: made.ContainerId})
		if err == nil && st.Status.State == cri.ContainerState_CONTAINER_EXITED {
			return []string{fmt.Sprintf("it ended: %s\n%s", st, text)}
		}
	}
	var facts []string
	say := func(who, line string) {
		if strings.HasPrefix(line, "file /proc/self/cgroup ") && who == "exec" {
			line = sameExec.ReplaceAllString(line, "")
		}
		facts = append(facts, who+" "+sameWords(line, n, run.PodSandboxId, made.ContainerId))
	}
	part := ""
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimRight(line, "\r\n"), " ", 4)
		if part += f[len(f)-1]; len(f) == 4 && f[2] == "F" {
			say("init", strings.TrimRight(part, "\r"))
			part = ""
		}
	}
	beside, err := n.runtime().ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: made.ContainerId, Cmd: []string{"/testbin", "view"}})
	if err != nil {
		return append(facts, "no exec "+err.Error())
	}
	for line := range strings.Lines(string(beside.Stdout) + string(beside.Stderr)) {
		say("exec", strings.TrimSpace(line))
	}
	return facts
}

var (
	sameID   = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
	sameNS   = regexp.MustCompile(`^namespace (\w+) (\S+) `)
	sameRoot = regexp.MustCompile(` root=\S+`)
	sameExec = regexp.MustCompile(`/exec-[0-9a-z]+-[0-9a-z]+$`) // crispd's cgroup of an exec
	samePipe = regexp.MustCompile(`pipe:\[\d+\]`)
)

// sameWords takes out of a fact what differs between any two pods.
func sameWords(line string, n *node, ids ...string) string {
	for _, id := range ids {
		line = strings.ReplaceAll(line, id, "ID")
	}
	line = strings.ReplaceAll(line, n.dir, "DIR")
	line = samePipe.ReplaceAllString(sameID.ReplaceAllString(line, "ID"), "pipe")
	if m := sameNS.FindStringSubmatch(line); m != nil {
		if host, err := os.Readlink("/proc/self/ns/" + m[1]); err == nil && host == m[2] {
			return "namespace " + m[1] + " the host's"
		}
		return "namespace " + m[1] + " another"
	}
	if strings.HasPrefix(line, "mount ") {
		line = sameRoot.ReplaceAllStringFunc(line, func(root string) string {
			if root == " root=/" || strings.HasPrefix(root, " root=/file") {
				return root
			}
			return " root=…"
		})
		if head, _, ok := strings.Cut(line, " overlay "); ok {
			return head + " overlay"
		}
	}
	return line
}

// sameDifference lists the facts of which there are more on one of two runtimes.
func sameDifference(ours, theirs []string) (list []string) {
	count := map[string]int{}
	for _, fact := range ours {
		count[fact]++
	}
	for _, fact := range theirs {
		count[fact]--
	}
	for fact, n := range count {
		if n > 0 {
			list = append(list, "crispd only: "+fact)
		} else if n < 0 {
			list = append(list, "containerd only: "+fact)
		}
	}
	slices.Sort(list)
	return list
}
