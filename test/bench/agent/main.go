// Command agent measures a program that runs pods from a directory of manifests: crisp's
// agent, or a standalone kubelet.
//
//	agent -endpoint unix:///run/crisp/crisp.sock -image IMAGE -manifests DIR [-pods 200] -- crisp agent --manifests DIR …
//
// It starts the command, waits until the command has read the empty directory, and writes
// the manifests of all pods at once, one container each. It prints
//
//	all running     from the first manifest to the moment when the runtime has all containers running
//	CPU meanwhile   of the command alone, not of the runtime
//	idle            the share of one core that the command takes in -idle, after -settle, with all pods
//	PSS, RSS        of the command then
//	all stopped     from the removal of the manifests until no sandbox of the runtime is ready
//	all gone        until the runtime has no sandbox left; not with -gone=false, since a kubelet
//	                leaves that to its garbage collection
//
// The runtime must have no pods before. The image must be present: nothing is pulled.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type options struct {
	endpoint, image, manifests string
	pods                       int
	warm, settle, idle, most   time.Duration
	gone                       bool
	command                    []string
}

func main() {
	var o options
	flag.StringVar(&o.endpoint, "endpoint", "unix:///run/crisp/crisp.sock", "socket of the runtime")
	flag.StringVar(&o.image, "image", "", "image of the containers; they run what it says")
	flag.StringVar(&o.manifests, "manifests", "", "directory that the command reads, empty")
	flag.IntVar(&o.pods, "pods", 200, "pods")
	flag.DurationVar(&o.warm, "warm", 3*time.Second, "wait before the first pod")
	flag.DurationVar(&o.settle, "settle", 5*time.Second, "wait after the last pod runs")
	flag.DurationVar(&o.idle, "idle", 20*time.Second, "how long the idle command is watched")
	flag.DurationVar(&o.most, "most", 5*time.Minute, "give up after")
	flag.BoolVar(&o.gone, "gone", true, "wait until nothing is left of the pods")
	flag.Parse()
	o.command = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// run measures the command. Even on an error it removes the manifests, so that the command removes
// the pods.
func run(ctx context.Context, o options) (err error) {
	if o.image == "" || o.manifests == "" || len(o.command) == 0 {
		return errors.New("-image, -manifests and a command are needed")
	}
	conn, err := grpc.NewClient(o.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	b := &bench{options: o, runtime: cri.NewRuntimeServiceClient(conn)}
	if n, err := b.sandboxes(ctx, cri.PodSandboxState_SANDBOX_READY, cri.PodSandboxState_SANDBOX_NOTREADY); err != nil || n > 0 {
		return errors.Join(err, fmt.Errorf("the runtime has %d pods", n))
	}
	cmd := exec.Command(o.command[0], o.command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches only this program
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	b.pid = cmd.Process.Pid
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // ended by our signal, which is no failure
	}()
	if err := sleep(ctx, o.warm); err != nil {
		return err
	}
	return errors.Join(b.up(ctx), b.down(context.WithoutCancel(ctx)))
}

type bench struct {
	options
	runtime cri.RuntimeServiceClient
	pid     int // the command's
}

const manifest = `apiVersion: v1
kind: Pod
metadata: {name: bench-%d}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - {name: app, image: "%s", imagePullPolicy: Never}
`

func (b *bench) up(ctx context.Context) error {
	spent, err := cpu(b.pid)
	if err != nil {
		return err
	}
	begin := time.Now()
	for i := range b.pods {
		text := fmt.Sprintf(manifest, i, b.image)
		if err := os.WriteFile(b.path(i), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := b.await(ctx, func() (bool, error) {
		n, err := b.running(ctx)
		return n == b.pods, err
	}); err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := cpu(b.pid)
	if err != nil {
		return err
	}
	fmt.Printf("all %d running  %.1f s\n", b.pods, took.Seconds())
	fmt.Printf("CPU meanwhile    %.1f s\n", (after - spent).Seconds())
	return b.watch(ctx)
}

// watch prints the command's CPU time and memory while nothing happens.
func (b *bench) watch(ctx context.Context) error {
	if err := sleep(ctx, b.settle); err != nil {
		return err
	}
	before, err := cpu(b.pid)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := sleep(ctx, b.idle); err != nil {
		return err
	}
	after, err := cpu(b.pid)
	if err != nil {
		return err
	}
	fmt.Printf("idle             %.1f %% of a core\n", 100*float64(after-before)/float64(time.Since(begin)))
	pss, err := field(fmt.Sprintf("/proc/%d/smaps_rollup", b.pid), "Pss:")
	if err != nil {
		return err
	}
	rss, err := field(fmt.Sprintf("/proc/%d/smaps_rollup", b.pid), "Rss:")
	if err != nil {
		return err
	}
	fmt.Printf("PSS, RSS         %.1f MiB, %.1f MiB\n", pss/1024, rss/1024)
	return nil
}

func (b *bench) down(ctx context.Context) error {
	begin := time.Now()
	var errs []error
	for i := range b.pods {
		if err := os.Remove(b.path(i)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, b.await(ctx, func() (bool, error) {
		n, err := b.sandboxes(ctx, cri.PodSandboxState_SANDBOX_READY)
		return n == 0, err
	}))
	fmt.Printf("all stopped      %.1f s\n", time.Since(begin).Seconds())
	if !b.gone {
		return errors.Join(errs...)
	}
	errs = append(errs, b.await(ctx, func() (bool, error) {
		n, err := b.sandboxes(ctx, cri.PodSandboxState_SANDBOX_READY, cri.PodSandboxState_SANDBOX_NOTREADY)
		return n == 0, err
	}))
	fmt.Printf("all gone         %.1f s\n", time.Since(begin).Seconds())
	return errors.Join(errs...)
}

func (b *bench) path(i int) string {
	return filepath.Join(b.manifests, fmt.Sprintf("bench-%d.yaml", i))
}

func (b *bench) running(ctx context.Context) (int, error) {
	list, err := b.runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}})
	return len(list.GetContainers()), err
}

// sandboxes counts the sandboxes in one of the states.
func (b *bench) sandboxes(ctx context.Context, states ...cri.PodSandboxState) (n int, err error) {
	list, err := b.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	for _, s := range list.GetItems() {
		if slices.Contains(states, s.State) {
			n++
		}
	}
	return n, err
}

// await polls seldom, so that the polls cost the runtime little.
func (b *bench) await(ctx context.Context, yes func() (bool, error)) error {
	for deadline := time.Now().Add(b.most); ; {
		ok, err := yes()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not so after %v", b.most)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// cpu returns the CPU time that a process has used, user and system: proc_pid_stat(5), fields 14
// and 15, in hundredths of a second.
func cpu(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("the command has ended: %w", err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var sum time.Duration
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ticks) * 10 * time.Millisecond
	}
	return sum, nil
}

// field returns the KiB in a line of a file in proc.
func field(path, name string) (float64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, name)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
