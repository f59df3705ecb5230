package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testdisk"
)

// several is the number of stuck objects for causes that may need more than one.
const several = 4

// manyStops is the thing whose pods exist before anything is measured.
const manyStops = "many stops"

var things = []thing{
	{"nothing", func(context.Context, *stuckNode) error { return nil }}, // the difference between any two measurements
	{"a process in D state", dState},
	{"a hung volume", hungVolume},
	{"a hung network plugin", hungPlugin},
	{"a stalled registry", stalledRegistry},
	{"readers that do not read", deafReaders},
	{"a full log disk", fullLogDisk},
	{"a fork bomb", forkBomb},
	{"a frozen cgroup", frozenCgroup},
	{"a full disk", fullDisk},
	{manyStops, func(_ context.Context, s *stuckNode) error { return s.stopCrowd() }},
}

// dState: containers that are being stopped, with processes that no signal ends.
func dState(ctx context.Context, s *stuckNode) error {
	f, err := mountHanging(filepath.Join(s.n.dir, "hanging"))
	if err != nil {
		return err
	}
	s.ends = append(s.ends, f.end)
	for i := range several {
		p, c, err := s.podOf(ctx, fmt.Sprint("d-state-", i), nil, func(c *cri.ContainerConfig) {
			c.Args = []string{"cat", "/volume/file"}
			c.Mounts = []*cri.Mount{{HostPath: f.dir, ContainerPath: "/volume"}}
		}, "")
		if err != nil {
			return err
		}
		s.hangs(func() {
			_, _ = s.n.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.id})
			_, _ = s.n.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
		})
		if err := asleep(c.id); err != nil { // after SIGKILL
			return err
		}
	}
	return nil
}

// asleep waits until a process of a container sleeps uninterruptibly.
func asleep(id string) error {
	for range 500 {
		for _, pid := range processesOf(id) {
			stat, _ := os.ReadFile(filepath.Join("/proc", pid, "stat"))
			if strings.Contains(string(stat), ") D ") {
				return nil
			}
			tasks, _ := filepath.Glob(filepath.Join("/proc", pid, "task", "*", "stat"))
			for _, task := range tasks {
				if stat, _ := os.ReadFile(task); strings.Contains(string(stat), ") D ") {
					return nil
				}
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("no process of the container sleeps uninterruptibly: nothing would be measured")
}

// processesOf returns the PIDs of the processes whose cgroup has the container's ID.
func processesOf(id string) (pids []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), id) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// hungVolume: containers are created with a volume that does not answer.
func hungVolume(ctx context.Context, s *stuckNode) error {
	f, err := mountHanging(filepath.Join(s.n.dir, "hanging"))
	if err != nil {
		return err
	}
	s.ends = append(s.ends, f.end)
	f.hangs.Store(true)
	for i := range several {
		s.hangs(func() {
			_, _, _ = s.podOf(ctx, fmt.Sprint("hung-", i), nil, func(c *cri.ContainerConfig) {
				c.Mounts = []*cri.Mount{{HostPath: filepath.Join(f.dir, "below"), ContainerPath: "/volume"}}
			}, "stays")
		})
	}
	time.Sleep(time.Second) // until they hang
	return nil
}

// hungPlugin: pods of a handler whose network plugin does not return.
func hungPlugin(ctx context.Context, s *stuckNode) error {
	if err := os.WriteFile(s.n.hangs(), nil, 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	s.ends = append(s.ends, func() error {
		cancel()
		return os.Remove(s.n.hangs())
	})
	for i := range several {
		config := s.sandboxConfig(fmt.Sprint("plugged-", i))
		config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_POD
		s.abandoned = append(s.abandoned, config)
		s.hangs(func() {
			_, _ = s.n.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: "hanging"})
		})
	}
	time.Sleep(time.Second)
	return nil
}

// stalledRegistry: pulls that get no data.
func stalledRegistry(ctx context.Context, s *stuckNode) error {
	s.n.registry.stall.Store(true)
	ctx, cancel := context.WithCancel(ctx)
	s.ends = append(s.ends, func() error {
		cancel()
		s.n.registry.stall.Store(false)
		return nil
	})
	for i := range extraImages {
		s.hangs(func() {
			_, _ = s.n.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: s.n.registry.ref(fmt.Sprintf("extra%d", i))}})
		})
	}
	time.Sleep(time.Second)
	return nil
}

// deaf blocks every write until it is closed.
type deaf chan struct{}

func (d deaf) Write(p []byte) (int, error) {
	<-d
	return len(p), nil
}

// deafReaders: a container that writes without end, with an attached client that does not read, and
// execs like that.
func deafReaders(ctx context.Context, s *stuckNode) error {
	_, c, err := s.podOf(ctx, "floods", nil, func(c *cri.ContainerConfig) { c.Args = []string{"count", "-1", "1ms"} }, "")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ear := make(deaf)
	s.ends = append(s.ends, func() error {
		cancel()
		close(ear)
		return nil
	})
	for i := range 2 * several {
		address := ""
		if i%2 == 0 {
			resp, err := s.n.runtime.Attach(ctx, &cri.AttachRequest{ContainerId: c.id, Stdout: true})
			if err != nil {
				return err
			}
			address = resp.Url
		} else {
			resp, err := s.n.runtime.Exec(ctx, &cri.ExecRequest{ContainerId: c.id, Cmd: []string{"/testbin", "flood", "1000000"}, Stdout: true})
			if err != nil {
				return err
			}
			address = resp.Url
		}
		u, err := url.Parse(address)
		if err != nil {
			return err
		}
		e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", u)
		if err != nil {
			return err
		}
		s.hangs(func() { _ = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: ear}) })
	}
	time.Sleep(time.Second)
	return nil
}

// fullLogDisk: containers that write to a log on a full disk.
func fullLogDisk(ctx context.Context, s *stuckNode) error {
	dir := filepath.Join(s.n.dir, "full-logs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		return err
	}
	s.ends = append(s.ends, func() error {
		return errors.Join(syscall.Unmount(dir, syscall.MNT_DETACH), os.Remove(dir))
	})
	for i := range several {
		if _, _, err := s.podOf(ctx, fmt.Sprint("writes-", i), func(p *cri.PodSandboxConfig) { p.LogDirectory = filepath.Join(dir, fmt.Sprint(i)) },
			func(c *cri.ContainerConfig) { c.Args = []string{"flood", "1", "count", "-1", "1ms"} }, ""); err != nil {
			return err
		}
	}
	time.Sleep(time.Second)
	return nil
}

// forkBomb: a container that starts processes without end, in a pod with a PID limit like the
// kubelet's.
func forkBomb(ctx context.Context, s *stuckNode) error {
	const parent = "/crisp-soak-bomb"
	dir := "/sys/fs/cgroup/pids" + parent
	if _, err := os.Stat("/sys/fs/cgroup/pids"); err != nil {
		dir = "/sys/fs/cgroup" + parent
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte("200"), 0); err != nil {
		return err
	}
	_, _, err := s.podOf(ctx, "bomb", func(p *cri.PodSandboxConfig) { p.Linux.CgroupParent = parent },
		func(c *cri.ContainerConfig) { c.Args = []string{"bomb"}; c.Linux.Resources.CpuShares = 2 }, "")
	time.Sleep(time.Second)
	return err
}

// frozenCgroup: containers that another program has frozen, with execs, and while they are being
// stopped.
func frozenCgroup(ctx context.Context, s *stuckNode) error {
	for i := range several {
		p, c, err := s.podOf(ctx, fmt.Sprint("frozen-", i), nil, nil, "stays")
		if err != nil {
			return err
		}
		if err := freeze(c.id); err != nil {
			return err
		}
		s.hangs(func() {
			_, _ = s.n.runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: c.id, Cmd: []string{"/testbin", "print", "here"}, Timeout: 5})
			_, _ = s.n.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.id, Timeout: 2})
			_, _ = s.n.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
		})
	}
	return nil
}

func freeze(id string) error {
	frozen := false
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || !strings.Contains(filepath.Base(path), id) {
			return nil
		}
		for file, word := range map[string]string{"freezer.state": "FROZEN", "cgroup.freeze": "1"} {
			if os.WriteFile(filepath.Join(path, file), []byte(word), 0) == nil {
				frozen = true
			}
		}
		return nil
	})
	if !frozen {
		return errors.Join(err, errors.New("the container's cgroup could not be frozen"))
	}
	return nil
}

// fullDisk: no blocks and no inodes are left below root, and crispd is restarted.
func fullDisk(ctx context.Context, s *stuckNode) error {
	junk := filepath.Join(s.n.root, "junk")
	if err := os.Mkdir(junk, 0o700); err != nil {
		return err
	}
	s.ends = append(s.ends, func() error { return os.RemoveAll(junk) })
	if err := testdisk.Fill(junk); err != nil {
		return err
	}
	if err := s.n.kill(ctx, true, false); err != nil {
		return err
	}
	return testdisk.Fill(junk)
}

// crowd runs the sandboxes that will be stopped at once.
func (s *stuckNode) crowd(ctx context.Context) error {
	for i := range s.o.pods {
		config := s.sandboxConfig(fmt.Sprint("crowd-", i))
		config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_POD
		resp, err := s.n.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.pods = append(s.pods, &pod{config: config, id: resp.PodSandboxId})
		s.mu.Unlock()
	}
	return nil
}

// stopCrowd stops all of them at once. The thing's end waits for that.
func (s *stuckNode) stopCrowd() error {
	began := time.Now()
	ended := make(chan error, len(s.pods))
	for _, p := range s.pods {
		s.hangs(func() {
			ctx, cancel := context.WithTimeout(explained(context.Background()), patience)
			defer cancel()
			_, err := s.n.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
			ended <- err
		})
	}
	s.ends = append(s.ends, func() error {
		var errs []error
		for range s.pods {
			errs = append(errs, <-ended)
		}
		fmt.Printf("soak: %d sandboxes were stopped at once within %v, %d failed\n", len(errs), time.Since(began).Round(time.Millisecond),
			len(slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })))
		return errors.Join(errs...)
	})
	return nil
}
