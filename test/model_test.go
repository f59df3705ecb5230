package test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/model"
	"github.com/crisp-cri/crisp/test/model/play"
	"github.com/crisp-cri/crisp/test/testenv"
)

// What server's TestModel does in fake time with a fake machine, this test does with the
// real programs and kernel: several clients at once, while crispd and its executor are
// killed at any moment. MODEL_FOR=1h runs it for an hour, MODEL_SEED=7 begins with that
// history, and MODEL_SCRIPT=FILE plays that script.
func TestModel(t *testing.T) { playModel(t, "", 15*time.Second) }

// The containers of shims keep to the same rules. Their programs take longer to start and to end:
// gVisor's seldom more than one history in the time.
func TestModelShim(t *testing.T) {
	testenv.Need(t, "shims")
	playModel(t, "shims", 15*time.Second)
}

func TestModelGVisor(t *testing.T) {
	testenv.Need(t, "gvisor")
	playModel(t, "gvisor", 10*time.Second)
}

// playModel is TestModel with the pods of a shim, unless that is "".
func playModel(t *testing.T, shim string, life time.Duration) {
	n, config := startNode(t, withShim(t, shim))
	m := &modelNode{t: t, n: n, config: config, shim: shim != ""}
	if file := os.Getenv("MODEL_SCRIPT"); file != "" {
		s, err := play.Parse(string(read(t, file)))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		m.play(s)
		return
	}
	seed, err := strconv.ParseUint(os.Getenv("MODEL_SEED"), 10, 64)
	if err != nil {
		seed = 1 // the same in every ordinary run
	}
	if other, err := time.ParseDuration(os.Getenv("MODEL_FOR")); err == nil {
		life = other
	}
	began, histories, events := time.Now(), 0, 0
	for ; histories == 0 || time.Since(began) < life && !t.Failed(); histories++ {
		t.Logf("seed %d", seed+uint64(histories))
		events += len(m.play(play.Generate(seed+uint64(histories), play.Real)))
	}
	t.Logf("%d histories of %d events from seed %d on in %v", histories, events, seed, time.Since(began).Round(time.Millisecond))
}

// A modelNode is a node for scripts of the model.
type modelNode struct {
	t      *testing.T
	n      *node
	config string
	shim   bool // pods have the handler "shim"
}

// play plays s. It does not search for a shorter script: the real timing is seldom the same
// twice.
func (m *modelNode) play(s play.Script) model.History {
	h, err := play.Play(m.t.Context(), m, s, model.Rules{LateHandlers: true, LateEvents: true})
	if err != nil {
		m.t.Errorf("%v\n\nscript:\n%v\nhistory:\n%v", err, s, h)
	}
	return h
}

func (m *modelNode) Images() cri.ImageServiceClient { return m.n.images() }

func (m *modelNode) Runtime() cri.RuntimeServiceClient {
	if m.shim {
		return shimRuntime{m.n.runtime()}
	}
	return m.n.runtime()
}

func (m *modelNode) Ref(image string) string {
	if image == "" {
		return testImage
	}
	return "registry.invalid/" + image + ":latest"
}

func (m *modelNode) Arm(int, bool) bool { return false }
func (m *modelNode) Dead() bool         { return false }
func (m *modelNode) FailAt(int)         {}
func (m *modelNode) Mend()              {}

func (m *modelNode) Kill() {
	if err := m.n.stopDaemon(syscall.SIGKILL); err != nil {
		m.t.Error(err)
	}
}

func (m *modelNode) KillExecutor() {
	// The executor may just be restarting.
	if pid, err := m.n.executorPid(); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func (m *modelNode) Stop() error  { return m.n.stopDaemon(syscall.SIGTERM) }
func (m *modelNode) Start() error { return m.n.start(m.config, nil) }

// Settle waits for the longest grace period, and until the programs that end have ended.
func (m *modelNode) Settle(unsettled bool) {
	rest := 100 * time.Millisecond
	if unsettled {
		rest += time.Duration(play.Real.Grace) * time.Second
		if m.shim {
			rest += 2 * time.Second // a call without its client may begin several programs
		}
	}
	time.Sleep(rest)
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	for {
		list, err := m.n.runtime().ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
			State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
			LabelSelector: map[string]string{play.ProgramLabel: "quits"},
		}})
		if err == nil && len(list.Containers) == 0 || ctx.Err() != nil {
			return // the model reports what has not ended
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Left returns what is left below the instance's directories, or mounted there.
func (m *modelNode) Left() []string {
	var left []string
	for _, pattern := range []string{"root/sandboxes/*", "root/containers/*", "run/sandboxes/*", "run/containers/*", "run/netns/*", "run/image/*"} {
		found, err := filepath.Glob(filepath.Join(m.n.dir, pattern))
		if err != nil {
			m.t.Error(err)
		}
		left = append(left, found...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		m.t.Error(err)
	}
	for line := range bytes.Lines(mounts) {
		for _, below := range []string{"/sandboxes/", "/netns/crisp-", "/image/"} {
			if bytes.Contains(line, []byte(m.n.dir+"/run"+below)) {
				left = append(left, "mount "+string(bytes.TrimSpace(line)))
			}
		}
	}
	return left
}
