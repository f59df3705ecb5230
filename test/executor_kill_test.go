package test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/logread"
	"github.com/crisp-cri/crisp/test/testenv"
)

// The executor is killed while containers write numbered lines, have attached clients, are
// probed by exec, and exit: 4 times with 10 containers, or KILLS=100 times with
// CONTAINERS=50. Every line is in its log once and in order, every exit code is right, each
// container keeps its process, and exec and attach work as soon as there is another
// executor. SEED=7 selects other moments.
func TestExecutorKills(t *testing.T) { executorKills(t, "", 4, 10) }

// A shim's containers are children of none of the executors, so no exit code is ever lost. gVisor
// takes a second for what takes others 50 ms, so there are few of its containers.
func TestExecutorKillsShim(t *testing.T) {
	testenv.Need(t, "shims")
	executorKills(t, "shims", 4, 10)
}

func TestExecutorKillsGVisor(t *testing.T) {
	testenv.Need(t, "gvisor")
	executorKills(t, "gvisor", 2, 3)
}

// crispd and its executor are killed at once, ten times or KILLS, under the same load. A service
// manager keeps what the containers write to.
func TestBothKills(t *testing.T) {
	kills, containers, seed := fromEnv("KILLS", 10), fromEnv("CONTAINERS", 10), fromEnv("SEED", 1)
	n, config := startNode(t, func(n *node, _ string) error {
		newServiceManager(t, n)
		return nil
	})
	n.expects("executor could not be reached")
	s := newSiege(t, n, containers, seed, nil, "")
	lines := s.besieged(seed, func() {
		for i := range kills {
			s.killBoth(i, config)
		}
	})
	t.Logf("%d kills of both; %d lines of %d containers; %d exits, %d lost as documented; %d execs, %d cut short; %d attachments saw %d lines",
		s.kills, lines, containers, s.exits, s.lost, s.execs.Load(), s.cut.Load(), s.attachments.Load(), s.watched.Load())
}

// killBoth kills the executor and crispd while containers exit, and starts crispd again.
func (s *siege) killBoth(i int, config string) {
	s.t.Helper()
	quitters := s.quitters(i)
	time.Sleep(time.Duration(s.random.IntN(200_000)) * time.Microsecond)
	s.down.Add(1)
	if s.killed(0) == 0 {
		s.t.Fatal("there is no executor")
	}
	if err := s.stopDaemon(syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	time.Sleep(time.Duration(s.random.IntN(200_000)) * time.Microsecond)
	if err := s.node.start(config, nil); err != nil {
		s.t.Fatal(err)
	}
	s.works(i)
	s.down.Add(1)
	s.unharmed(i, quitters)
}

// executorKills is TestExecutorKills with the containers of a shim, unless that is "".
func executorKills(t *testing.T, shim string, kills, containers int) {
	kills, containers, seed := fromEnv("KILLS", kills), fromEnv("CONTAINERS", containers), fromEnv("SEED", 1)
	n, _ := startNode(t, withShim(t, shim))
	n.expects("executor could not be reached") // when it is killed before it has answered
	n.expects("executor is in trouble")        // when each of four pings comes between a kill and the next executor
	t.Logf("%d kills under %d containers, seed %d", kills, containers, seed)
	s := newSiege(t, n, containers, seed, nil, shim)
	lines := s.besieged(seed, func() {
		for i := range kills {
			s.kill(i)
		}
	})
	t.Logf("%d kills, %d of executors that had not begun to work; %d lines of %d containers; %d exits, %d lost as documented; %d execs, %d cut short; %d attachments saw %d lines",
		s.kills, s.early, lines, containers, s.exits, s.lost, s.execs.Load(), s.cut.Load(), s.attachments.Load(), s.watched.Load())
}

// besieged attaches to containers and probes them while f runs, ends them, and returns the
// number of lines that they have written.
func (s *siege) besieged(seed int, f func()) (lines int) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	var clients sync.WaitGroup
	for i, w := range s.writers {
		if i%2 == 0 {
			clients.Go(func() { s.watch(ctx, w) })
		}
	}
	for i := range 4 { // concurrent probes
		random := rand.New(rand.NewPCG(uint64(seed), uint64(i)+1))
		clients.Go(func() { s.probe(ctx, random) })
	}
	f()
	cancel()
	clients.Wait()

	touch(s.t, filepath.Join(s.shared, "over"))
	for i, w := range s.writers {
		s.ends(w.id, int32(i%100), w.name)
		lines += s.complete(w)
	}
	s.checkEcho()
	if s.execs.Load() == 0 || s.watched.Load() == 0 {
		s.t.Error("no container was probed, or no client attached")
	}
	return lines
}

// newSiege starts the containers of a siege, in the node's network unless they are a shim's: gVisor
// takes the network that it finds for its own.
func newSiege(t *testing.T, n *node, containers, seed int, linux *cri.LinuxContainerConfig, shim string) *siege {
	t.Helper()
	s := &siege{unified: &unified{node: n, t: t}, random: rand.New(rand.NewPCG(uint64(seed), 0)), shared: filepath.Join(n.dir, "shared"), linux: linux}
	if err := os.Mkdir(s.shared, 0o755); err != nil {
		t.Fatal(err)
	}
	options, handler := []string{"host-network"}, ""
	if shim != "" {
		options, handler, s.shim = nil, "shim", true
	}
	pod, err := n.sandboxConfig("p", options)
	if err != nil {
		t.Fatal(err)
	}
	s.unified.runWith(pod, handler)
	for i := range containers {
		s.begin(i)
	}
	own, err := grpc.NewClient("unix://"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	s.clients = cri.NewRuntimeServiceClient(own)
	return s
}

func fromEnv(name string, otherwise int) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		return otherwise
	}
	return n
}

// A siege is a node whose executor is killed again and again.
type siege struct {
	*unified
	random  *rand.Rand
	clients cri.RuntimeServiceClient  // for attach and exec; waits for crispd
	linux   *cri.LinuxContainerConfig // of all containers
	shim    bool                      // they are a shim's
	shared  string                    // mounted into all containers as /shared
	writers []*writer
	ear     writer   // echoes its input
	said    []string // input that ear got

	kills, early, exits, lost int
	down                      atomic.Int64 // odd while there is no executor; each kill changes it
	execs, cut                atomic.Int64
	attachments, watched      atomic.Int64
}

// A writer is a container that writes numbered lines until /shared/over exists.
type writer struct {
	name, id string
	tty      bool
	pid      int
	began    string // start time of its process, from the kernel
}

func (s *siege) start(name string, tty, stdin bool, command ...string) *writer {
	s.t.Helper()
	created, err := s.runtime().CreateContainer(s.ctx(), &cri.CreateContainerRequest{
		PodSandboxId: s.ids["p"], SandboxConfig: s.sandboxes["p"],
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: testImage},
			Command: append([]string{"/testbin"}, command...), LogPath: name + ".log", Tty: tty, Stdin: stdin, Linux: s.linux,
			Mounts: []*cri.Mount{{HostPath: s.shared, ContainerPath: "/shared", Readonly: true}},
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	w := &writer{name: name, id: created.ContainerId, tty: tty}
	s.ids[name], s.sandboxOf[name] = w.id, "p"
	if _, err := s.runtime().StartContainer(s.ctx(), &cri.StartContainerRequest{ContainerId: w.id}); err != nil {
		s.t.Fatal(err)
	}
	return w
}

// begin starts the i-th writer, and before the first ones the container that echoes.
func (s *siege) begin(i int) {
	s.t.Helper()
	periods := []string{"1ms", "2ms", "5ms", "10ms", "50ms"}
	if i == 0 {
		s.ear = *s.start("ear", false, true, "echo-stdin", "exit", "9")
	}
	w := s.start(fmt.Sprint("w", i), i%10 == 9, false, "count-until", "/shared/over", periods[i%len(periods)], "exit", fmt.Sprint(i%100))
	w.pid = s.pid(w.id)
	if w.began = startTime(w.pid); w.began == "" {
		s.t.Fatalf("container %s has no process %d", w.name, w.pid)
	}
	s.writers = append(s.writers, w)
}

// startTime returns field 22 of proc_pid_stat(5), "" for a process that has ended.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := bytes.Cut(stat, []byte(") "))
	fields := bytes.Fields(rest)
	if err != nil || !ok || len(fields) < 20 || string(fields[0]) == "Z" {
		return ""
	}
	return string(fields[19])
}

// kill kills the executor, at times its successor as well, while containers exit; then it
// checks that everything works at once.
func (s *siege) kill(i int) {
	s.t.Helper()
	quitters := s.quitters(i)
	time.Sleep(time.Duration(s.random.IntN(200_000)) * time.Microsecond)
	s.down.Add(1)
	killed := s.killed(0)
	for s.random.IntN(4) == 0 {
		time.Sleep(time.Duration(s.random.IntN(60_000)) * time.Microsecond)
		if next := s.killed(killed); next != 0 {
			killed = next
			s.early++
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if pid, err := s.executorPid(); err == nil && pid != killed {
			break
		}
		if time.Now().After(deadline) {
			s.t.Fatal("no other executor is started")
		}
	}
	s.works(i)
	s.down.Add(1)
	s.unharmed(i, quitters)
}

// quitters starts two containers that exit soon, and returns them by their exit codes.
func (s *siege) quitters(i int) map[int32]*writer {
	s.t.Helper()
	quitters := make(map[int32]*writer)
	for j := range 2 {
		code := int32(10 + (2*i+j)%100)
		quitters[code] = s.start(fmt.Sprint("q", 2*i+j), false, false, "print", "up", "sleep", fmt.Sprint(s.random.IntN(200), "ms"), "print", "down", "exit", fmt.Sprint(code))
	}
	return quitters
}

// works checks that exec and attach work.
func (s *siege) works(i int) {
	s.t.Helper()
	for range 3 {
		w := s.writers[s.random.IntN(len(s.writers))]
		if r, err := s.runtime().ExecSync(s.ctx(), &cri.ExecSyncRequest{ContainerId: w.id, Cmd: []string{"/testbin", "print", "here"}}); err != nil || string(r.Stdout) != "here\n" {
			s.t.Errorf("exec in %s after kill %d: %v, %q", w.name, i, err, r.GetStdout())
		}
	}
	said := fmt.Sprintf("said %d\n", i)
	a := s.attach(s.ear.id)
	a.hears(said)
	s.said = append(s.said, said)
}

// unharmed checks that the quitters have exited, that no other container has, and that each
// of those still has its process.
func (s *siege) unharmed(i int, quitters map[int32]*writer) {
	s.t.Helper()
	for code, q := range quitters {
		s.ends(q.id, code, q.name)
		if got := logText(s.t, s.logFile(q.name)); got != "up\ndown\n" {
			s.t.Errorf("the log of %s has %q", q.name, got)
		}
	}
	for _, w := range s.writers {
		if began := startTime(w.pid); began != w.began {
			s.t.Fatalf("after kill %d process %d of %s has the start time %q, had %q", i, w.pid, w.name, began, w.began)
		}
		st, err := s.runtime().ContainerStatus(s.ctx(), &cri.ContainerStatusRequest{ContainerId: w.id})
		if err != nil || st.Status.State != cri.ContainerState_CONTAINER_RUNNING {
			s.t.Fatalf("after kill %d container %s is %v, %v", i, w.name, st.GetStatus().GetState(), err)
		}
	}
}

// killed kills the executor, unless its PID is before, and returns its PID; 0 if there was
// none.
func (s *siege) killed(before int) int {
	s.t.Helper()
	pid, err := s.executorPid()
	if err != nil || pid == before {
		return 0
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return 0
	}
	s.kills++
	return pid
}

// ends waits until a container has exited and checks its exit code. Linux before 6.15 has
// no exit code for children of an executor that died (docs/install.md).
func (s *siege) ends(id string, code int32, name string) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		resp, err := s.runtime().ContainerStatus(s.ctx(), &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			s.t.Fatal(err)
		}
		st := resp.Status
		if st.State == cri.ContainerState_CONTAINER_EXITED {
			s.exits++
			switch {
			case !s.shim && !kernel.Probe().PidfdInfo && st.ExitCode == 255 && st.Reason == "Unknown" && st.Message != "":
				s.lost++
			case st.ExitCode != code:
				s.t.Errorf("container %s has ended with %d (%s: %s), want %d", name, st.ExitCode, st.Reason, st.Message, code)
			}
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("container %s does not end", name)
		}
	}
}

// logText returns what a container has written to its stdout.
func logText(t *testing.T, file string) string {
	t.Helper()
	var text strings.Builder
	for line := range bytes.Lines(read(t, file)) {
		r, err := logread.Parse(line)
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
			continue
		}
		text.Write(r.Content)
		if !r.Partial {
			text.WriteByte('\n')
		}
	}
	return text.String()
}

// complete checks that the log of w has everything that w wrote, and returns the number of
// lines.
func (s *siege) complete(w *writer) int {
	s.t.Helper()
	lines := strings.Split(strings.TrimSuffix(logText(s.t, s.logFile(w.name)), "\n"), "\n")
	for i, line := range lines {
		want := strconv.Itoa(i)
		if i == len(lines)-1 {
			want = fmt.Sprint("counted ", i)
		}
		if line != want {
			s.t.Errorf("line %d of the log of %s is %q", i, w.name, line)
			break
		}
	}
	return len(lines)
}

// checkEcho checks the input of the container that echoes.
func (s *siege) checkEcho() {
	s.t.Helper()
	if got, want := logText(s.t, s.logFile("ear")), strings.Join(s.said, ""); got != want {
		s.t.Errorf("the log of ear has %q, want %q", got, want)
	}
}

// probe probes containers by exec until ctx ends. Only an exec that a kill interrupts may
// fail, with an error that says so.
func (s *siege) probe(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		w := s.writers[random.IntN(len(s.writers))]
		before := s.down.Load()
		r, err := s.clients.ExecSync(s.ctx(), &cri.ExecSyncRequest{ContainerId: w.id, Cmd: []string{"/testbin", "print", "alive"}})
		killed := before%2 == 1 || s.down.Load() != before
		switch {
		case err == nil && string(r.Stdout) == "alive\n" && r.ExitCode == 0:
			s.execs.Add(1)
		case killed && status.Code(err) == codes.Unavailable:
			s.cut.Add(1)
		default:
			s.t.Errorf("exec in %s (killed meanwhile: %v): %v, %v", w.name, killed, r, err)
		}
		time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
	}
}

// watch attaches to w, and again when it is disconnected, until ctx ends. Within an
// attachment no line is missing.
func (s *siege) watch(ctx context.Context, w *writer) {
	for ctx.Err() == nil {
		before := s.down.Load()
		resp, err := s.clients.Attach(ctx, &cri.AttachRequest{ContainerId: w.id, Stdout: true, Stderr: !w.tty, Tty: w.tty})
		if err == nil {
			err = s.see(ctx, w, resp.Url)
		}
		if killed := before%2 == 1 || s.down.Load() != before; err != nil && !killed && ctx.Err() == nil {
			s.t.Errorf("attached to %s: %v", w.name, err)
		}
	}
}

// see reads one attachment until it ends.
func (s *siege) see(ctx context.Context, w *writer, at string) error {
	parsed, err := url.Parse(at)
	if err != nil {
		return err
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", parsed)
	if err != nil {
		return err
	}
	heard, out := io.Pipe()
	o := remotecommand.StreamOptions{Stdout: out, Tty: w.tty}
	if !w.tty {
		o.Stderr = io.Discard
	}
	ended := make(chan error, 1)
	go func() {
		ended <- e.StreamWithContext(ctx, o)
		out.Close()
	}()
	last := -1
	for lines := bufio.NewScanner(heard); lines.Scan(); {
		i, err := strconv.Atoi(strings.TrimSpace(lines.Text()))
		if last >= 0 && i != last+1 && ctx.Err() == nil {
			s.t.Errorf("a client attached to %s got %q after %d", w.name, lines.Text(), last)
		}
		if err == nil {
			last = cmp.Or(i, last)
			s.watched.Add(1)
		}
	}
	s.attachments.Add(1)
	return <-ended
}
