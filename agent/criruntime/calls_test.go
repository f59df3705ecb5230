package criruntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/pull"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/pulls"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	fake "k8s.io/cri-api/pkg/apis/testing"
)

// A recorder is a runtime in memory that records the calls that change something, with the seconds
// since its start.
type recorder struct {
	*fake.FakeRuntimeService
	*fake.FakeImageService
	begun time.Time

	mu       sync.Mutex
	calls    []string
	config   *cri.PodSandboxConfig // of the last sandbox
	events   []string
	exec     func() error  // the effect of a hook
	pulling  time.Duration // duration of a pull
	busy     int           // pulls at work
	mostBusy int
	refuse   string // the password that the registry rejects
	private  bool   // the registry requires credentials
}

func (r *recorder) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, fmt.Sprintf("%d ", int(time.Since(r.begun).Seconds()))+fmt.Sprintf(format, args...))
}

func (r *recorder) Event(_ v1.ObjectReference, _, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, reason+": "+message)
}

func (r *recorder) recorded(part string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.events, func(e string) bool { return strings.Contains(e, part) })
}

func (r *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got := strings.Join(r.calls, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	r.calls = nil
}

func (r *recorder) RunPodSandbox(ctx context.Context, c *cri.PodSandboxConfig, handler string) (string, error) {
	r.note("run %s %q overhead %d", c.Metadata.Name, handler, c.Linux.Overhead.MemoryLimitInBytes)
	r.mu.Lock()
	r.config = c
	r.mu.Unlock()
	return r.FakeRuntimeService.RunPodSandbox(ctx, c, handler)
}

func (r *recorder) StopPodSandbox(ctx context.Context, id string) error {
	r.note("stop %s", id)
	return r.FakeRuntimeService.StopPodSandbox(ctx, id)
}

func (r *recorder) CreateContainer(ctx context.Context, id string, c *cri.ContainerConfig, sb *cri.PodSandboxConfig) (string, error) {
	r.note("create %s %d", c.Metadata.Name, c.Metadata.Attempt)
	return r.FakeRuntimeService.CreateContainer(ctx, id, c, sb)
}

func (r *recorder) StartContainer(ctx context.Context, id string) error {
	r.note("start")
	return r.FakeRuntimeService.StartContainer(ctx, id)
}

func (r *recorder) StopContainer(ctx context.Context, id string, timeout int64) error {
	r.note("stop %d", timeout)
	return r.FakeRuntimeService.StopContainer(ctx, id, timeout)
}

func (r *recorder) ExecSync(ctx context.Context, _ string, cmd []string, timeout time.Duration) ([]byte, []byte, error) {
	r.note("exec %q %v", cmd, timeout)
	r.mu.Lock()
	exec := r.exec
	r.mu.Unlock()
	if exec == nil {
		return nil, nil, nil
	}
	return nil, nil, exec()
}

func (r *recorder) UpdateContainerResources(_ context.Context, id string, res *cri.ContainerResources) error {
	r.note("update cpu %d memory %d", res.Linux.CpuQuota, res.Linux.MemoryLimitInBytes)
	return nil
}

func (r *recorder) UpdatePodSandboxResources(_ context.Context, req *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	r.note("update sandbox cpu %d memory %d", req.Resources.CpuQuota, req.Resources.MemoryLimitInBytes)
	return &cri.UpdatePodSandboxResourcesResponse{}, nil
}

func (r *recorder) PullImage(ctx context.Context, image *cri.ImageSpec, auth *cri.AuthConfig, sb *cri.PodSandboxConfig) (string, error) {
	r.note("pull %s %s", image.Image, auth.GetUsername())
	r.mu.Lock()
	r.busy++
	r.mostBusy = max(r.mostBusy, r.busy)
	wait, refused := r.pulling, r.refuse != "" && auth.GetPassword() == r.refuse || r.private && auth.GetPassword() == ""
	r.mu.Unlock()
	time.Sleep(wait)
	r.mu.Lock()
	r.busy--
	r.mu.Unlock()
	if refused {
		return "", errors.New("401")
	}
	return r.FakeImageService.PullImage(ctx, image, auth, sb)
}

func (r *recorder) Close(context.Context) error { return nil }

// A shelf has the objects to which these tests refer.
type shelf struct{ none }

func (shelf) Secret(namespace, name string) (*v1.Secret, error) {
	if name != "pull" {
		return nil, fault.NotFound.Errorf("there is no secret %s", name)
	}
	return &v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{
		v1.DockerConfigJsonKey: []byte(`{"auths": {"reg.example/app": {"username": "near", "password": "old"}, "reg.example": {"username": "far", "password": "new"}}}`),
	}}, nil
}

func (shelf) RuntimeClass(name string) (*nodev1.RuntimeClass, error) {
	class := &nodev1.RuntimeClass{Handler: name, Overhead: &nodev1.Overhead{PodFixed: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Mi")}}}
	class.Name = name
	if name == "none" {
		return nil, fault.NotFound.Errorf("there is no runtime class %s", name)
	}
	return class, nil
}

// record makes a driver on a recorder, and the pod of a spec.
func record(t *testing.T, spec string) (*Driver, *recorder, *v1.Pod) {
	t.Helper()
	r := &recorder{FakeRuntimeService: fake.NewFakeRuntimeService(), FakeImageService: fake.NewFakeImageService(), begun: time.Now()}
	r.FakeStatus = &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{{Type: cri.RuntimeReady, Status: true}, {Type: cri.NetworkReady, Status: true}}}
	root := t.TempDir()
	d := New(withParts(Options{
		Root: root, Runtime: r, Images: r, Files: files(t, root), ClusterDomain: "cluster.local",
		Objects: shelf{}, Events: r, Host: host{handlers: []string{"", "alt"}}, Log: slog.New(slog.DiscardHandler),
	}))
	list, _, err := manifest.Read("web.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n"+spec), manifest.Options{NodeName: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	return d, r, list[0].(*v1.Pod)
}

// begin runs the pod's sandbox and starts its containers, as a worker would, and
// returns their IDs.
func begin(t *testing.T, d *Driver, pod *v1.Pod) map[string]string {
	t.Helper()
	ids := map[string]string{}
	for range 10 {
		have, err := d.Observe(t.Context(), podsync.KeyOf(pod), pod)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range have.Containers {
			ids[c.Name] = c.ID
		}
		for _, a := range podsync.Compute(pod, have, time.Now()).Actions {
			if err := d.Act(t.Context(), t.Context(), pod, a); err != nil {
				t.Fatalf("%s: %v", a.Verb, err)
			}
		}
	}
	return ids
}

func now() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// A pod with a hook starts in this order, with its class's handler and overhead.
func TestBegin(t *testing.T) {
	d, r, pod := record(t, `
  runtimeClassName: alt
  containers:
  - {name: a, image: "i:1", lifecycle: {postStart: {exec: {command: [hello]}}}}
  - {name: b, image: "i:1"}
`)
	begin(t, d, pod)
	r.expect(t, `0 run web "alt" overhead 1048576`, "0 pull i:1 ", "0 create a 0", "0 start", `0 exec ["hello"] 0s`, "0 create b 0", "0 start")
	for _, want := range []string{"Pulling: Pulling image \"i:1\"", "Pulled: Successfully pulled", "Created: Container created", "Started: Container started", "Pulled: Container image \"i:1\" already present"} {
		if !r.recorded(want) {
			t.Errorf("no event %q in %q", want, r.events)
		}
	}
}

// A sandbox that is not ready any more is stopped before the next one runs, because the runtime may
// keep its address until then. A failure to stop it does not prevent the pod from running.
func TestFormerSandboxIsStopped(t *testing.T) {
	d, r, pod := record(t, "  containers: [{name: a, image: i}]\n")
	r.expect(t)
	r.FakeRuntimeService.InjectError("StopPodSandbox", errors.New("no plugin"))
	run := podsync.Action{Verb: podsync.RunSandbox, UID: string(pod.UID), ID: "former", Attempt: 1}
	if err := d.Act(t.Context(), t.Context(), pod, run); err != nil {
		t.Error(err)
	}
	r.expect(t, "0 stop former", `0 run web "" overhead 0`)
	if want := "FailedKillPod: Failed to stop the sandbox before it"; !r.recorded(want) {
		t.Errorf("no event %q in %q", want, r.events)
	}
}

// A class that does not exist, or whose handler the runtime does not have, prevents the pod from
// running and is reported.
func TestRuntimeClassUnknown(t *testing.T) {
	for class, want := range map[string]string{"none": "there is no runtime class none", "other": `the runtime has no handler "other"; it has ["" "alt"]`} {
		d, r, pod := record(t, "  runtimeClassName: "+class+"\n  containers: [{name: a, image: i}]\n")
		err := d.Act(t.Context(), t.Context(), pod, podsync.Action{Verb: podsync.RunSandbox, UID: string(pod.UID)})
		if err == nil || !strings.Contains(err.Error(), want) || reasonOf(err) != "FailedCreatePodSandBox" || !r.recorded("FailedCreatePodSandBox: Failed to create pod sandbox: ") {
			t.Errorf("%s: %v, events %q", class, err, r.events)
		}
		r.expect(t)
	}
}

// While the network is not ready only pods that do not need it run.
func TestNetworkNotReady(t *testing.T) {
	d, r, pod := record(t, "  containers: [{name: a, image: i}]\n")
	r.FakeStatus.Conditions[1] = &cri.RuntimeCondition{Type: cri.NetworkReady, Reason: "NoConfig", Message: "no file"}
	run := podsync.Action{Verb: podsync.RunSandbox, UID: string(pod.UID)}
	if err := d.Act(t.Context(), t.Context(), pod, run); reasonOf(err) != "NetworkNotReady" || !r.recorded("NetworkNotReady: network is not ready: NoConfig: no file") {
		t.Errorf("got %v, events %q", err, r.events)
	}
	pod.Spec.HostNetwork = true
	if err := d.Act(t.Context(), t.Context(), pod, run); err != nil {
		t.Error(err)
	}
}

const stoppable = `
  terminationGracePeriodSeconds: 30
  containers: [{name: a, image: "i:1", lifecycle: {preStop: {exec: {command: [bye]}}}}]
`

// The time of the preStop hook counts against the grace period, and so does the wait until a
// container is stopped in its turn. At least two seconds remain.
func TestStop(t *testing.T) {
	for _, test := range []struct {
		name        string
		grace, hook time.Duration
		turn        time.Duration
		want        []string
	}{
		{"hook", 30 * time.Second, 5 * time.Second, 0, []string{`0 exec ["bye"] 0s`, "5 stop 25"}},
		{"hook and turn", 30 * time.Second, 5 * time.Second, 12 * time.Second, []string{`0 exec ["bye"] 0s`, "12 stop 18"}},
		{"turn that does not come", 10 * time.Second, time.Second, time.Hour, []string{`0 exec ["bye"] 0s`, "10 stop 2"}},
		{"no time for a hook", 0, time.Second, 0, []string{"0 stop 2"}},
		{"more time than there is", podsync.Seconds(math.MaxInt64), 5 * time.Second, 0, []string{`0 exec ["bye"] 0s`, "5 stop 4611686013"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, r, pod := record(t, stoppable)
				id := begin(t, d, pod)["a"]
				r.calls = nil
				r.exec = func() error { time.Sleep(test.hook); return nil }
				turn := make(chan struct{})
				time.AfterFunc(test.turn, func() { close(turn) })
				a := podsync.Action{Verb: podsync.StopContainer, ID: id, UID: string(pod.UID), Name: "a", Grace: test.grace}
				if err := d.Stop(t.Context(), turn, pod, a); err != nil {
					t.Fatal(err)
				}
				r.expect(t, test.want...)
				if !r.recorded("Killing: Stopping container a") {
					t.Errorf("events %q", r.events)
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// A sleep hook longer than the maximum time.Duration lasts as long as the grace period.
func TestStopAfterEndlessPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, r, pod := record(t, `
  terminationGracePeriodSeconds: 20000000000
  containers: [{name: a, image: "i:1", lifecycle: {preStop: {sleep: {seconds: 20000000000}}}}]
`)
		id := begin(t, d, pod)["a"]
		r.calls = nil
		a := podsync.Action{Verb: podsync.StopContainer, ID: id, UID: string(pod.UID), Name: "a", Grace: time.Minute}
		if err := d.Stop(t.Context(), now(), pod, a); err != nil {
			t.Fatal(err)
		}
		r.expect(t, "60 stop 2")
	})
}

// When a container is removed, only the logs of its last two instances are kept.
func TestRemovedRunsLeaveNoLog(t *testing.T) {
	d, _, pod := record(t, "  containers: [{name: a, image: \"i:1\"}]\n")
	id := begin(t, d, pod)["a"]
	dir := filepath.Join(d.files.LogDir(pod), "a")
	for _, name := range []string{"0.log", "1.log", "2.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := podsync.Action{Verb: podsync.RemoveContainer, ID: id, UID: string(pod.UID), Name: "a"}
	for _, a.Logs = range []int{0, 2} {
		if err := d.Act(t.Context(), t.Context(), pod, a); err != nil {
			t.Fatal(err)
		}
		logs, err := os.ReadDir(dir)
		if want := 3 - a.Logs/2; err != nil || len(logs) != want {
			t.Errorf("%d logs, %v, want %d", len(logs), err, want)
		}
	}
}

// A failing preStop hook is reported, without its output, and the container is stopped anyway. The
// hook of a container whose pod is unknown is taken from the container's annotations.
func TestStopOrphan(t *testing.T) {
	d, r, pod := record(t, stoppable)
	id := begin(t, d, pod)["a"]
	r.calls = nil
	r.exec = func() error { return errors.New("secret") }
	if err := os.RemoveAll(filepath.Join(d.o.Root, "pods")); err != nil {
		t.Fatal(err)
	}
	next := again(t, d)
	have, err := next.Observe(t.Context(), podsync.KeyOf(pod), nil)
	if err != nil {
		t.Fatal(err)
	}
	plan := podsync.Compute(nil, have, time.Now())
	if len(plan.Actions) != 1 || plan.Actions[0].ID != id || plan.Actions[0].Grace != 30*time.Second {
		t.Fatalf("plan %+v", plan)
	}
	if err := next.Stop(t.Context(), now(), nil, plan.Actions[0]); err != nil {
		t.Fatal(err)
	}
	r.expect(t, `0 exec ["bye"] 0s`, "0 stop 30")
	if !r.recorded("FailedPreStopHook: PreStopHook failed") || r.recorded("secret") {
		t.Errorf("events %q", r.events)
	}
}

// At most three pulls run at a time; the others wait, and an abandoned one leaves the queue.
func TestPullsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, r, pod := record(t, "  containers: [{name: a, image: \"i:1\"}]\n")
		r.pulling = 10 * time.Second
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i == 7 {
					time.AfterFunc(time.Second, cancel)
				}
				_, _, err := d.puller.pull(ctx, pod, &pod.Spec.Containers[0], &cri.ImageSpec{Image: fmt.Sprintf("i:%d", i)}, nil)
				if (err == nil) != (i != 7) {
					t.Errorf("pull %d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if r.mostBusy != 3 || len(r.calls) != 7 {
			t.Errorf("%d at a time, %q", r.mostBusy, r.calls)
		}
	})
}

// A speed is a PullWatcher whose pulls make progress of so many bytes per second.
type speed int64

func (s speed) Follow(ctx context.Context, image, pod string, report func(pulls.Pull)) {
	far := pulls.Pull{Image: image, Total: 1e12}
	if s < 0 { // the disk is slow
		far.Layers = []pulls.Layer{{State: pulls.Waiting}, {State: pulls.Unpacking}}
	}
	for ; ctx.Err() == nil; far.Bytes += max(int64(s), 0) {
		report(far)
		periodic.Pause(ctx, time.Second)
	}
}

// Pulls from hanging registries do not block pulls from others. Those from slow ones, and to slow
// disks, keep their turn.
func TestStuckPullsLetOthersBegin(t *testing.T) {
	for _, s := range []speed{0, 1, -1} {
		synctest.Test(t, func(t *testing.T) {
			d, r, pod := record(t, "  containers: [{name: a, image: \"i:1\"}]\n")
			r.pulling = time.Minute
			d.puller.o.Progress = s
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					if _, _, err := d.puller.pull(t.Context(), pod, &pod.Spec.Containers[0], &cri.ImageSpec{Image: fmt.Sprintf("i:%d", i)}, nil); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
			}
			wg.Wait()
			next := 10
			if s != 0 {
				next = 60
			}
			r.expect(t, "0 pull i:0 ", "0 pull i:1 ", "0 pull i:2 ", fmt.Sprintf("%d pull i:3 ", next))
			if len(d.puller.queue.slots) > 0 {
				t.Error("a turn was not given back")
			}
		})
	}
}

// At most ten pulls start at once, then five per second.
func TestPullsPerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(Pulls{Parallel: -1})
		begun := time.Now()
		var at []int
		for range 20 {
			done, err := q.wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			done()
			at = append(at, int(time.Since(begun).Milliseconds()))
		}
		if at[9] != 0 || at[10] != 200 || at[19] != 2000 {
			t.Errorf("they began at %v ms", at)
		}
	})
}

// A rate that is negative or nearly 0 means no limit.
func TestPullsWithoutRate(t *testing.T) {
	for _, rate := range []float64{-1, 1e-60} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			q := newQueue(Pulls{PerSec: rate, Burst: 2})
			for i := range 20 {
				done, err := q.wait(ctx)
				if err != nil {
					t.Fatalf("%g a second: pull %d: %v", rate, i, err)
				}
				done()
			}
		})
	}
}

// Credentials are tried from the most specific on until one is accepted; a missing secret is
// reported.
func TestPullSecrets(t *testing.T) {
	d, r, pod := record(t, "  imagePullSecrets: [{name: missing}, {name: pull}]\n  containers: [{name: a, image: reg.example/app}]\n")
	r.refuse = "old"
	begin(t, d, pod)
	r.expect(t, `0 run web "" overhead 0`, "0 pull reg.example/app:latest near", "0 pull reg.example/app:latest far", "0 create a 0", "0 start")
	if !r.recorded("FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (missing)") {
		t.Errorf("events %q", r.events)
	}
	r.refuse = "new"
	pod.Spec.ImagePullSecrets = pod.Spec.ImagePullSecrets[:1]
	if err := os.WriteFile(filepath.Join(d.o.Root, "config.json"), []byte(`{"auths": {"reg.example": {"username": "node", "password": "new"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := d.puller.pull(t.Context(), pod, &pod.Spec.Containers[0], &cri.ImageSpec{Image: "reg.example/app"}, nil)
	if reasonOf(err) != "ErrImagePull" {
		t.Errorf("got %v", err)
	}
}

// A resize updates the sandbox first when the pod grows and last when it shrinks, and
// decreases come before increases.
func TestResize(t *testing.T) {
	d, r, pod := record(t, `
  containers:
  - {name: a, image: "i:1", resources: {limits: {cpu: 100m, memory: 10Mi}}}
  - {name: b, image: "i:1", resources: {limits: {cpu: 200m, memory: 20Mi}}}
`)
	begin(t, d, pod)
	r.calls = nil
	d.kernel = podspec.Kernel{}
	resized := pod.DeepCopy()
	set := func(i int, name v1.ResourceName, q string) {
		resized.Spec.Containers[i].Resources.Limits[name] = resource.MustParse(q)
		resized.Spec.Containers[i].Resources.Requests[name] = resource.MustParse(q)
	}
	set(0, v1.ResourceMemory, "40Mi")
	set(1, v1.ResourceMemory, "15Mi")
	set(0, v1.ResourceCPU, "50m")
	begin(t, d, resized)
	r.expect(t,
		"0 update sandbox cpu 30000 memory 57671680", // not less CPU than the containers have yet
		"0 update cpu 20000 memory 15728640", "0 update cpu 10000 memory 41943040",
		"0 update cpu 5000 memory 41943040",
		"0 update sandbox cpu 25000 memory 57671680")
	begin(t, d, resized)
	r.expect(t)

	// The next agent knows what was recorded.
	next := again(t, d)
	begin(t, next, resized)
	r.expect(t)
}

// An image that one pod has pulled with its secret is not given to another pod: that pod must pull
// it, and the registry decides.
func TestPulledWithASecret(t *testing.T) {
	d, r, with := record(t, "  imagePullSecrets: [{name: pull}]\n  containers: [{name: a, image: reg.example/app, imagePullPolicy: IfNotPresent}]\n")
	ledger, err := pull.OpenLedger(d.o.Root, pull.NeverVerifyPreloaded, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.puller.o.Pulled = ledger
	begin(t, d, with)
	r.expect(t, `0 run web "" overhead 0`, "0 pull reg.example/app:latest near", "0 create a 0", "0 start")

	c := &with.Spec.Containers[0]
	without := with.DeepCopy()
	without.Spec.ImagePullSecrets = nil
	r.calls = nil
	if _, _, err := d.puller.ensure(t.Context(), t.Context(), with, c, nil); err != nil || len(r.calls) > 0 {
		t.Errorf("with the secret: %q, %v", r.calls, err)
	}
	r.private = true
	if _, _, err := d.puller.ensure(t.Context(), t.Context(), without, c, nil); reasonOf(err) != "ErrImagePull" {
		t.Errorf("without: %v", err)
	}
	never := c.DeepCopy()
	never.ImagePullPolicy = v1.PullNever
	if _, _, err := d.puller.ensure(t.Context(), t.Context(), without, never, nil); reasonOf(err) != "ErrImageNeverPull" {
		t.Errorf("without, never pulled: %v", err)
	}
	if _, _, err := d.puller.ensure(t.Context(), t.Context(), with, never, nil); err != nil {
		t.Errorf("with the secret, never pulled: %v", err)
	}
}

// A damaged record of who may use an image does not prevent a pod from starting: the pod pulls the
// image, and the record is rewritten.
func TestDamagedPullRecord(t *testing.T) {
	d, r, pod := record(t, "  containers: [{name: a, image: reg.example/app, imagePullPolicy: IfNotPresent}]\n")
	ledger, err := pull.OpenLedger(d.o.Root, pull.NeverVerifyPreloaded, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.puller.o.Pulled = ledger
	begin(t, d, pod)
	records, err := filepath.Glob(filepath.Join(d.o.Root, "images/pulled/*"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records %q, %v", records, err)
	}
	for _, text := range []string{"", `{"imageRef": "reg`} {
		if err := os.WriteFile(records[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.calls = nil
		for range 2 {
			if _, _, err := d.puller.ensure(t.Context(), t.Context(), pod, &pod.Spec.Containers[0], nil); err != nil {
				t.Errorf("%q: %v", text, err)
			}
		}
		r.expect(t, "0 pull reg.example/app:latest ")
	}
}

// An HTTP hook asks the newest of several ready sandboxes, whichever the runtime lists first.
func TestHookAsksTheNewestSandbox(t *testing.T) {
	d, r, pod := record(t, "  containers: [{name: a, image: i}]\n")
	labels := d.of(podsync.KeyOf(pod))
	labels[podspec.LabelPodUID] = string(pod.UID)
	var all []*fake.FakePodSandbox
	for i := range uint32(9) {
		all = append(all, &fake.FakePodSandbox{PodSandboxStatus: cri.PodSandboxStatus{
			Id: fmt.Sprint("s", i), Labels: labels, CreatedAt: -int64(i), Metadata: &cri.PodSandboxMetadata{Name: pod.Name, Uid: string(pod.UID), Attempt: i},
			Network: &cri.PodSandboxNetworkStatus{Ip: fmt.Sprint("192.0.2.", i)},
		}})
	}
	r.SetFakeSandboxes(all)
	if ips, err := d.addresses(t.Context(), pod); err != nil || !slices.Equal(ips, []string{"192.0.2.8"}) {
		t.Errorf("%v, %v", ips, err)
	}
}
