package test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	imagename "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

const (
	sameCgroup = "same" // the parent cgroup of all pods
	sameEnd    = "that is all"
)

// Random pods are run on crispd and on containerd, Debian's or the one in CONTAINERD, and the process in each, and one that
// is executed beside it, print what they see of the kernel (testbin's "view"). A difference that
// is not predicted by sameReasons fails. SAME is how many pods there are, and SEED
// draws others.
func TestSameContainers(t *testing.T) {
	testenv.Need(t, "namespaces") // with systemd the parents of cgroups would differ
	peer := startContainerd(t)
	base := sameSources(t)
	t.Cleanup(func() { removeCgroups(sameCgroup) })
	// What the peer keeps after a pod's end, such as its bridge, must exist before ours takes its
	// snapshot.
	warm := (&drawer{rand.New(rand.NewPCG(0, 0)), base}).twin("warm")
	warm.sandbox.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_POD
	warm.sandbox.Hostname, warm.container.Image.Image = "warm", testImage
	seesOn(t, peer, warm)
	ours, _ := startNode(t)
	sameImages(t, ours, peer)
	seed, explained := sameNumber("SEED", 1), map[string]int{}
	for i := range sameNumber("SAME", 10) {
		d := &drawer{rand.New(rand.NewPCG(seed, i)), base}
		tw := d.twin(fmt.Sprintf("twin-%d", i))
		reasons := sameReasons
		if os.Getenv("CONTAINERD") != "" {
			d.modernize(tw)
			reasons = slices.Concat(sameReasons, modernReasons)
		}
		theirs := seesOn(t, peer, tw)
		if tw.container.Linux.SecurityContext.SupplementalGroupsPolicy == cri.SupplementalGroupsPolicy_Strict && len(theirs) > 1 {
			// Without the primary group, which containerd leaves out, who changes it leaves it.
			theirs = strictGroups(tw, theirs)
		}
		want := predict(withoutFlags(theirs, tw, explained), tw, reasons, explained)
		if diff := sameDifference(seesOn(t, ours, tw), want); len(diff) > 0 {
			config, _ := protojson.Marshal(tw.container)
			pod, _ := protojson.Marshal(tw.sandbox)
			t.Errorf("SEED=%d, pod %d:\n%s\npod: %s\ncontainer: %s", seed, i, strings.Join(diff, "\n"), pod, config)
		}
	}
	for reason, n := range explained {
		t.Logf("%d times: %s", n, reason)
	}
}

func sameNumber(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// sameImages loads the drawer's images that have a user. The user is a member of an additional
// group.
func sameImages(t *testing.T, nodes ...*node) {
	for name, config := range map[string]string{
		"crisp.test/named:latest":    `{"User": "user", "WorkingDir": "/tmp", "StopSignal": "SIGUSR1", "Env": ["PATH=/nowhere", "A=of the image"]}`,
		"crisp.test/numbered:latest": `{"User": "1000:root", "WorkingDir": "/not/there", "StopSignal": "SIGRTMIN+3"}`,
	} {
		image, err := testbinImage(nodes[0].testbin)
		if err != nil {
			t.Fatal(err)
		}
		const groups = "root:x:0:\nuser:x:1000:\nmore:x:77:user,root\n"
		l, err := layer([]*tar.Header{{Name: "etc/group", Mode: 0o644, Typeflag: tar.TypeReg}}, [][]byte{[]byte(groups)})
		if err == nil {
			image, err = mutate.AppendLayers(image, l)
		}
		if err == nil {
			image, err = withConfig(image, config)
		}
		if err != nil {
			t.Fatal(err)
		}
		tag, err := imagename.NewTag(name)
		if err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(t.TempDir(), "image.tar")
		if err := tarball.WriteToFile(archive, tag, image); err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			load := exec.Command(filepath.Join(n.binaries.dir, "crisp"), "--runtime-endpoint", "unix://"+n.socket, "image", "load", "-i", archive)
			if strings.HasSuffix(n.socket, "containerd.sock") {
				load = exec.Command(filepath.Join(containerdBin(t), "ctr"), "--address", n.socket, "--namespace", "k8s.io", "images", "import", "--snapshotter", "overlayfs", archive)
			}
			if out, err := load.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
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
	nodes := filepath.Join(base, "nodes")
	err := errors.Join(os.WriteFile(filepath.Join(src, "file"), []byte("text\n"), 0o644), os.Mkdir(nodes, 0o755),
		unix.Mknod(filepath.Join(nodes, "full"), unix.S_IFCHR|0o640, int(unix.Mkdev(1, 7))),
		os.WriteFile(filepath.Join(base, "seccomp.json"), []byte(sameProfile), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return base
}

// sameProfile is a seccomp profile on the node.
const sameProfile = `{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
 "syscalls": [{"names": ["personality", "keyctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]}`

// seesOn runs a pod and returns what its processes see, one fact per line, without parts that
// differ between runtimes.
func seesOn(t *testing.T, n *node, tw twin) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tw = twin{proto.CloneOf(tw.sandbox), proto.CloneOf(tw.container)}
	tw.sandbox.LogDirectory = filepath.Join(n.dir, "logs", tw.sandbox.Metadata.Name)
	if err := os.RemoveAll(tw.sandbox.LogDirectory); err != nil { // from an earlier twin of this name
		t.Fatal(err)
	}
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
		t.Logf("%s: %v", filepath.Base(n.socket), err)
		return []string{"no container"}
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
	_, err = n.runtime().StopContainer(ctx, &cri.StopContainerRequest{ContainerId: made.ContainerId, Timeout: 20})
	if err != nil {
		t.Error(err)
	}
	st, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: made.ContainerId})
	if err != nil {
		t.Fatal(err)
	}
	return append(facts, fmt.Sprintf("stopped with %d", st.Status.ExitCode))
}

var (
	sameID   = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
	sameNS   = regexp.MustCompile(`^namespace (\w+) (\S+) `)
	sameRoot = regexp.MustCompile(` root=\S+`)
	sameExec = regexp.MustCompile(`^(file /proc/self/cgroup .*/)exec-[0-9a-z]+-[0-9a-z]+$`)
	samePipe = regexp.MustCompile(`pipe:\[\d+\]`)
)

// sameWords replaces the parts of a fact that differ between any two pods.
func sameWords(line string, n *node, ids ...string) string {
	for _, id := range ids {
		line = strings.ReplaceAll(line, id, "ID")
	}
	line = strings.ReplaceAll(line, n.dir, "DIR")
	line = samePipe.ReplaceAllString(sameID.ReplaceAllString(line, "ID"), "pipe")
	line = sameExec.ReplaceAllString(line, "${1}exec")
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

// sameDifference lists the facts that occur more often on one of two runtimes.
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
