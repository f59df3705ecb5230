package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Each file that crispd or its executor has on the disk is broken once while neither runs: empty,
// cut in half, or garbage. Both start all the same, list and remove what there is, and then run
// pods. A normal run breaks each file in one way, CRISP_STARTS=full in each.
func TestStartsWithBrokenFiles(t *testing.T) {
	n, config := startNode(t)
	n.expects(`"level":"ERROR"|level=ERROR`)
	tried := map[string]bool{}
	for round, last := 0, 0; round-last <= len(breakages); round++ {
		n.somePods(t, fmt.Sprint("p", round))
		n.endBoth(t, true) // what runs has some of them mapped
		how := breakages[round%len(breakages)]
		what := how.name + " nothing"
		if path := how.breakNext(t, n.ownFiles(t), tried); path != "" {
			last, what = round, how.name+" "+path
		}
		n.startsAndServes(t, config, what)
	}
	t.Logf("%d kinds of files", len(tried))
	for _, part := range []string{"boot.json", "record.json"} { // the test finds what there is
		if !slices.ContainsFunc(slices.Collect(maps.Keys(tried)), func(key string) bool { return strings.HasSuffix(key, part) }) {
			t.Errorf("no %s was broken, only %v", part, tried)
		}
	}
}

// A boot mark that is damaged is no reboot: what ran is still running, and shown so, whether or not
// the executor died too.
func TestStartsWithBrokenBootMark(t *testing.T) {
	n, config := startNode(t)
	n.somePods(t, "p")
	mark := filepath.Join(n.root, "boot.json")
	for _, how := range breakages {
		for _, killed := range []bool{false, true} {
			n.endBoth(t, killed)
			data := how.change(read(t, mark))
			if err := os.WriteFile(mark, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := n.start(config, nil); err != nil {
				t.Fatal(err)
			}
			for c, want := range map[string]struct {
				state cri.ContainerState
				code  int32
			}{
				"p-runs":  {cri.ContainerState_CONTAINER_RUNNING, 0},
				"p-ended": {cri.ContainerState_CONTAINER_EXITED, 3},
			} {
				r, err := n.runtime().ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: n.ids[c]})
				if err != nil {
					t.Fatal(err)
				}
				if r.Status.State != want.state || r.Status.ExitCode != want.code {
					t.Errorf("%s boot.json, executor killed %v: %s is %v with code %d", how.name, killed, c, r.Status.State, r.Status.ExitCode)
				}
			}
			if _, err := n.runtime().ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: n.ids["p-runs"], Cmd: []string{"/testbin", "exit", "0"}}); err != nil {
				t.Error(err)
			}
			r, err := n.runtime().PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: n.ids["p"]})
			if err != nil || r.Status.State != cri.PodSandboxState_SANDBOX_READY {
				t.Errorf("the pod is %v, %v", r.GetStatus().GetState(), err)
			}
		}
	}
	if err := n.withoutPods(); err != nil {
		t.Error(err)
	}
}

// A clock that was wrong, or is: all files are of 1970, then of 2100.
func TestStartsWithFilesOfAnotherTime(t *testing.T) {
	n, config := startNode(t)
	for _, year := range []int{1970, 2100} {
		for _, killed := range []bool{false, true} {
			n.somePods(t, fmt.Sprint("p", year, "-", killed))
			n.endBoth(t, killed)
			for _, path := range n.ownFiles(t) {
				at := time.Date(year, 1, 2, 0, 0, 0, 0, time.UTC)
				if err := errors.Join(os.Chtimes(path, at, at), os.Chtimes(filepath.Dir(path), at, at)); err != nil {
					t.Fatal(err)
				}
			}
			n.startsAndServes(t, config, fmt.Sprint("files of ", year))
		}
	}
}

// crispd and its executor start, list and remove what there is, and after room was made run pods,
// when no room is left where they write on their way: no block and no inode on the disk of root, no
// block on that of state, where sockets need inodes. The disk is filled again before each step, so
// that each write finds it full.
func TestStartsOnAFullDisk(t *testing.T) {
	for _, where := range []string{"root", "state"} {
		t.Run(where, func(t *testing.T) {
			dir := ""
			n, config := startNode(t, func(n *node, _ string) error {
				dir = filepath.Join(n.dir, "disk")
				inodes := "3000"
				if where == "root" {
					n.root = filepath.Join(dir, "root")
				} else {
					n.state, inodes = filepath.Join(dir, "run"), "0"
					n.socket = filepath.Join(n.state, "crisp.sock")
				}
				return n.mountDisk(dir, []string{"64", inodes})
			})
			n.expects(`"level":"ERROR"|level=ERROR`)
			for _, killed := range []bool{false, true} {
				n.somePods(t, fmt.Sprint("p", killed))
				if err := fillDisk(dir); err != nil {
					t.Fatal(err)
				}
				n.endBoth(t, killed)
				n.startsAndServes(t, config, "a full disk", func() {
					if err := fillDisk(dir); err != nil {
						t.Fatal(err)
					}
				})
				if err := freeDisk(dir); err != nil {
					t.Fatal(err)
				}
			}
			n.somePods(t, "after")
			if err := n.withoutPods(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A breakage is a way to damage a file.
type breakage struct {
	name   string
	change func([]byte) []byte
}

var breakages = []breakage{
	{"empty", func([]byte) []byte { return nil }},
	{"half of", func(b []byte) []byte { return b[:len(b)/2] }},
	{"garbage in", func(b []byte) []byte { return bytes.Repeat([]byte{0xff, 'x'}, len(b)/2+1) }},
}

// breakNext damages the first of the files whose kind was not tried yet, or not in this way with
// CRISP_STARTS=full, and returns its path.
func (how breakage) breakNext(t *testing.T, files []string, tried map[string]bool) string {
	t.Helper()
	for _, path := range files {
		key := kindOfFile(path)
		if os.Getenv("CRISP_STARTS") == "full" {
			key = how.name + " " + key
		}
		if tried[key] {
			continue
		}
		tried[key] = true
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, how.change(data), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	return ""
}

// somePods runs a pod with a container that runs, and one that has ended.
func (n *node) somePods(t *testing.T, name string) {
	t.Helper()
	pod, err := n.sandboxConfig(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := n.runtime().RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod})
	if err != nil {
		t.Fatal(err)
	}
	n.ids[name], n.sandboxes[name] = r.PodSandboxId, pod
	for c, args := range map[string][]string{"-runs": {"sleep", "for-ever"}, "-ended": {"exit", "3"}} {
		if err := n.createContainer(t.Context(), append([]string{name, name + c, "--", "testbin"}, args...)); err != nil {
			t.Fatal(err)
		}
		if _, err := n.runtime().StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: n.ids[name+c]}); err != nil {
			t.Fatal(err)
		}
	}
}

// endBoth ends crispd and, if it should, kills the executor first.
func (n *node) endBoth(t *testing.T, executor bool) {
	t.Helper()
	if err := n.stopDaemon(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !executor {
		return
	}
	pid, err := n.executorPid()
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	for syscall.Kill(pid, 0) == nil {
		time.Sleep(time.Millisecond)
	}
}

var anyID = regexp.MustCompile(`[0-9a-f-]{8,}|\d+`)

func kindOfFile(path string) string {
	return anyID.ReplaceAllString(filepath.Base(filepath.Dir(path))+"/"+filepath.Base(path), "N")
}

// ownFiles returns the regular files below root and state, except the content of images and mounts.
func (n *node) ownFiles(t *testing.T) []string { return filesBelow(t, n.root, n.state) }

func filesBelow(t *testing.T, dirs ...string) (list []string) {
	t.Helper()
	for _, top := range dirs {
		var device uint64
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return nil
			}
			st := info.Sys().(*syscall.Stat_t)
			if device == 0 {
				device = st.Dev
			}
			switch {
			case d.IsDir() && (st.Dev != device || slices.Contains([]string{"layers", "rootfs", "upper", "work", "quarantine"}, d.Name())):
				return fs.SkipDir
			case d.Type().IsRegular() && st.Dev == device && !strings.HasSuffix(path, ".lock"):
				list = append(list, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// startsAndServes starts crispd, lists what there is, asks for the status of all of it, and removes
// it. before is called before each step.
func (n *node) startsAndServes(t *testing.T, config, what string, before ...func()) {
	t.Helper()
	step := func(name string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %s: %v", what, name, err)
		}
		for _, f := range before {
			f()
		}
	}
	step("", nil)
	step("start", n.start(config, nil))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	list, err := n.runtime().ListContainers(ctx, &cri.ListContainersRequest{})
	step("list containers", err)
	for _, c := range list.Containers {
		_, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id, Verbose: true})
		step("status", err)
	}
	pods, err := n.runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	step("list pods", err)
	for _, sb := range pods.Items {
		_, err := n.runtime().PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: sb.Id, Verbose: true})
		step("status", err)
		_, err = n.runtime().StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sb.Id})
		step("stop", err)
		_, err = n.runtime().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sb.Id})
		step("remove", err)
	}
	images, err := n.images().ListImages(ctx, &cri.ListImagesRequest{})
	step("list images", err)
	step("nothing is left", n.withoutPods())
	if len(images.Images) == 0 { // its record was broken
		step("load", n.loadImage())
	}
}
