package test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/filetrace"
	"github.com/crisp-cri/crisp/test/model"
	"github.com/crisp-cri/crisp/test/model/play"
	"github.com/crisp-cri/crisp/test/testenv"
)

// No two calls on one object leave it in a state that neither would, whatever the moment. One call
// is blocked at a system call of crispd or of its executor with which it changes the machine; another
// runs to its end, or until it waits for the first; then the first goes on, or a daemon is killed.
// Afterwards the answers are those of one of the two orders, everything can be removed, and nothing
// is left.
//
// The pairs are all of those in which the blocked call makes sense for the state of the object. An
// ordinary run tries each at one step; CRISP_MATRIX=full tries all steps, each also with the
// death of crispd and with that of the executor, which takes hours. Subtests are named by the pair:
// -run 'TestMatrix/created/start/remove$'. MODEL_SCRIPT=FILE plays one script.
func TestMatrix(t *testing.T) {
	testenv.Need(t, "ptrace")
	n, config := startNode(t)
	m := &matrixNode{modelNode: &modelNode{t: t, n: n, config: config}, whole: t}
	if file := os.Getenv("MODEL_SCRIPT"); file != "" {
		s, err := play.Parse(string(read(t, file)))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		m.daemon = os.Getenv("CRISP_MATRIX")
		m.play(s)
		return
	}
	for _, m.daemon = range []string{"crispd", "executor"} {
		m.play(overlap(matrix[2], model.Start, "", 0, "")) // the first makes one-time objects
	}
	began := time.Now()
	for _, state := range matrix {
		if !t.Run(state.name, func(t *testing.T) { m.state(t, state) }) && n.cmd == nil {
			t.Fatal("crispd has ended")
		}
	}
	t.Logf("%d overlaps, in %d of which a call was blocked, in %v", m.cases, m.blocked, time.Since(began).Round(time.Second))
}

// A matrixState is what a pod is like before the calls overlap.
type matrixState struct {
	name   string
	setup  []model.Verb
	first  []model.Verb // calls that are blocked
	second []model.Verb // calls that run meanwhile
}

var (
	podCalls       = []model.Verb{model.RunPod, model.StopPod, model.RemovePod, model.UpdatePod, model.PodStatus, model.Create}
	containerCalls = []model.Verb{model.Create, model.Start, model.Stop, model.Remove, model.Exec, model.Update, model.Reopen, model.Checkpoint, model.Status}
	allCalls       = slices.Concat(podCalls[:5], containerCalls)
)

// matrix has every call in each state in which it has something to do.
var matrix = []matrixState{
	{"none", nil, []model.Verb{model.RunPod}, []model.Verb{model.RunPod}},
	{"ready", []model.Verb{model.RunPod}, []model.Verb{model.StopPod, model.RemovePod, model.UpdatePod, model.Create}, podCalls},
	{"created", []model.Verb{model.RunPod, model.Create}, []model.Verb{model.Start, model.Remove, model.Update, model.StopPod, model.RemovePod}, allCalls},
	{
		"running", []model.Verb{model.RunPod, model.Create, model.Start},
		[]model.Verb{model.Stop, model.Remove, model.Exec, model.Update, model.Reopen, model.Checkpoint, model.StopPod, model.RemovePod}, allCalls,
	},
	{"exited", []model.Verb{model.RunPod, model.Create, model.Start, model.Stop}, []model.Verb{model.Remove, model.RemovePod}, allCalls},
}

// state plays the pairs of a state.
func (m *matrixNode) state(t *testing.T, state matrixState) {
	for _, first := range state.first {
		if first == model.Checkpoint && !m.canCheckpoint(t) {
			continue
		}
		t.Run(string(first), func(t *testing.T) {
			m.t = t
			steps := map[string]int{}
			for _, daemon := range []string{"crispd", "executor"} {
				m.daemon = daemon
				m.play(overlap(state, first, "", 0, ""))
				steps[daemon] = m.steps
			}
			t.Logf("it has %d steps in crispd, %d in the executor", steps["crispd"], steps["executor"])
			for _, second := range state.second {
				if second == model.Checkpoint && !m.canCheckpoint(t) {
					continue
				}
				t.Run(string(second), func(t *testing.T) {
					m.t = t
					m.pair(state, first, second, steps)
				})
				m.t = t
			}
		})
	}
}

// pair plays the overlaps of two calls. The steps, faults and daemons alternate from pair to pair.
func (m *matrixNode) pair(state matrixState, first, second model.Verb, steps map[string]int) {
	acts := []string{"", play.Crash, play.Executor}
	for _, m.daemon = range []string{"crispd", "executor"} {
		n := steps[m.daemon]
		if os.Getenv("CRISP_MATRIX") == "full" {
			for _, act := range acts {
				for k := 1; k <= n; k++ {
					m.play(overlap(state, first, second, k, act))
				}
			}
			continue
		}
		if m.pairs++; n > 0 && (m.daemon == "crispd" || m.pairs%4 == 0) {
			m.play(overlap(state, first, second, 1+m.pairs*5%n, acts[max(0, m.pairs%6-3)]))
		}
	}
}

// overlap returns the script in which second runs while first is blocked at its step k; "" = none does.
func overlap(state matrixState, first, second model.Verb, k int, act string) play.Script {
	step := func(client string, verb model.Verb) play.Step {
		call := model.Call{Verb: verb, Pod: "p"}
		if !slices.Contains(podCalls[:5], verb) {
			call.Container = "c"
		}
		if verb == model.Update {
			call.Value = model.Values[1]
		}
		return play.Step{Client: client, Call: call}
	}
	var s play.Script
	for _, verb := range state.setup {
		if len(s.Rounds) == 0 {
			s.Rounds = make([]play.Round, 1)
		}
		s.Rounds[0] = append(s.Rounds[0], step("a", verb))
	}
	r := play.Round{{Client: play.Nemesis, Act: play.Block, Step: k}, step("a", first)}
	if second != "" {
		r = append(r, step("b", second))
	}
	if act != "" {
		r = append(r, play.Step{Client: play.Nemesis, Act: act})
	}
	s.Rounds = append(s.Rounds, r)
	return s
}

// A matrixNode is a node for scripts with overlaps: a step is a system call.
type matrixNode struct {
	*modelNode
	daemon string // whose calls are blocked: "crispd" or "executor"

	whole  *testing.T
	inject *filetrace.Inject
	traced int // PID
	armed  int
	steps  int // of the last overlap

	pairs, cases, blocked int
	stuck                 bool // an overlap has failed
}

// matrixSteps are the system calls with which the daemons change the machine, or tell each other
// to.
var matrixSteps = strings.Fields(`mount umount2 move_mount fsmount mount_setattr unshare setns clone clone3 mkdirat unlinkat renameat renameat2 symlinkat linkat
	mknodat send sendmsg kill pidfd_send_signal`)

func (m *matrixNode) play(s play.Script) {
	m.t.Helper()
	if m.stuck {
		return
	}
	m.attach()
	h, err := play.Play(m.t.Context(), m, s, model.Rules{LateHandlers: true, LateEvents: true})
	m.cases++
	if err == nil {
		err = m.n.withoutPods()
	}
	if err != nil {
		m.t.Errorf("%s: %v\n\nscript:\n%v\nhistory:\n%v", m.daemon, err, s, h)
		m.stuck = true // what is left would fail all others
	}
}

func (m *matrixNode) canCheckpoint(t *testing.T) bool {
	why := testenv.Lacks("criu")
	if why != "" {
		t.Logf("no checkpoints: %s", why)
	}
	return why == ""
}

func (m *matrixNode) pid() int {
	if m.daemon == "crispd" {
		return m.n.cmd.Process.Pid
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if pid, err := m.n.executorPid(); err == nil {
			return pid
		}
		if time.Now().After(deadline) {
			m.t.Fatal("no executor runs")
		}
	}
}

// attach traces the daemon.
func (m *matrixNode) attach() {
	pid := m.pid()
	if pid == m.traced {
		return
	}
	if m.inject != nil {
		m.untrace()
	}
	m.inject, m.traced = filetrace.Attach(m.whole, pid), pid
	m.inject.Only(matrixSteps...)
	m.n.idle = nil // it would not include the tracer
	if err := m.n.takeIdle(); err != nil {
		m.t.Fatal(err)
	}
}

// Block implements play.Blocker.
func (m *matrixNode) Block(n int) {
	m.inject.Arm(n, filetrace.Hang)
	m.armed = n
}

func (m *matrixNode) Blocked(done <-chan struct{}) {
	for m.armed == 0 || !m.inject.Hangs() {
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
	}
	m.blocked++
}

func (m *matrixNode) Release() {
	what, _ := m.inject.Disarm()
	m.steps = what.Count
}

// Kill implements play.Node. It lets a blocked executor go on: the next crispd asks it for what it has.
func (m *matrixNode) Kill() {
	m.modelNode.Kill()
	m.untrace()
}

func (m *matrixNode) KillExecutor() {
	m.modelNode.KillExecutor()
	if m.daemon == "executor" {
		m.untrace()
	}
}

// untrace ends the tracer, also of a dead daemon.
func (m *matrixNode) untrace() {
	m.inject.Release()
	m.traced = 0
}

// Settle implements play.Node. Once nothing changes any more, a pod that is not ready has no address.
func (m *matrixNode) Settle(bool) {
	ctx, cancel := context.WithTimeout(m.t.Context(), 20*time.Second)
	defer cancel()
	for {
		time.Sleep(20 * time.Millisecond)
		addressed, err := m.addressed(ctx)
		if err == nil && addressed == "" {
			return
		}
		if ctx.Err() != nil {
			m.t.Errorf("of a stopped pod there are left the addresses %s, %v", addressed, err)
			return
		}
	}
}

// addressed returns the addresses of pods that are not ready.
func (m *matrixNode) addressed(ctx context.Context) (string, error) {
	all, err := m.n.runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_NOTREADY},
	}})
	for _, sb := range all.GetItems() {
		r, err := m.n.runtime().PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: sb.Id})
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil || r.Status.Network.GetIp() != "" {
			return r.GetStatus().GetNetwork().GetIp(), err
		}
	}
	return "", err
}
