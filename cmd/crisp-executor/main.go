// Command crisp-executor is the parent of every container of a node; see oci/executor. crispd
// starts it if none runs, and talks to it over its socket. It logs JSON lines to stderr.
//
// The same program is libcontainer's "init", which becomes the container's first process. It is
// executed for every container and every exec, so nothing here may be slow to load.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	_ "github.com/opencontainers/cgroups/devices" // sets device rules; libcontainer refuses to start without
	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // joins namespaces before Go starts
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/unixsock"
	"github.com/crisp-cri/crisp/oci/executor"
	ociruntime "github.com/crisp-cri/crisp/oci/executor/runtime"
	"github.com/crisp-cri/crisp/oci/executor/seal"
)

// version is set by the linker.
var version = "unknown"

func init() {
	runtime.LockOSThread() // the main goroutine, to the main thread: see executor.Serve
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case "init":
		debug.SetGCPercent(-1) // it lives for a few milliseconds
		libcontainer.Init()
	case ociruntime.BounceArg:
		ociruntime.Bounce(os.Args[2:])
	case executor.CheckArg:
		executor.CheckState()
	}
}

func main() {
	socket := flag.String("socket", "/run/crisp/executor.sock", "listen on this `path`")
	state := flag.String("state", "/run/crisp", "crisp's state `directory`")
	cgroup := flag.String("cgroup", "", "move to this `cgroup` first, below the root of every hierarchy; with systemd, to a scope of that name")
	lockFD := flag.Int("lock-fd", -1, "the `descriptor` of the lock that is held for this executor")
	show := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *show {
		fmt.Println(version)
		return
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "crisp-executor: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	file := newLogFile(filepath.Join(*state, "executor.log"))
	log := slog.New(slog.NewJSONHandler(file, nil))
	o := executor.Options{Socket: *socket, State: *state, Version: version, Log: log}
	// After an upgrade that descriptor number belongs to another file.
	if *lockFD >= 0 && seal.Sealed() && !executor.Resuming() {
		unix.CloseOnExec(*lockFD)
		o.Lock = os.NewFile(uintptr(*lockFD), "executor.lock")
	}
	if err := run(o, *cgroup, file, log); err != nil {
		log.Error("executor ended", "err", err)
		os.Exit(1)
	}
}

func run(o executor.Options, cgroup string, file *logFile, log *slog.Logger) error {
	if !seal.Sealed() {
		self, err := seal.Copy("/proc/self/exe")
		if err != nil {
			return err
		}
		return seal.Execute(self, os.Args, os.Environ())
	}
	debug.SetGCPercent(50) // it keeps little in memory, but allocates much during a start
	bridge(log)
	prepare(cgroup, log)
	kernel.LimitHeap(log) // by the cgroup that prepare has moved it to
	open := executor.New
	if executor.Resuming() {
		open = executor.Resume
	}
	x, err := open(o)
	if err != nil {
		return err
	}
	_, _ = os.FindProcess(os.Getpid()) // its first call forks, to find out about pidfds: not among others
	go onTerm(x, log)
	go periodic.Run(context.Background(), unixsock.Period, func(context.Context) { file.look() })
	log.Info("executor started", "pid", os.Getpid(), "version", version)
	x.Serve()
	if cgroup != "" {
		leave(cgroup)
	}
	return nil
}

// prepare makes the process fit to be the parent of all containers. It logs steps that are not
// permitted, and continues without them.
func prepare(cgroup string, log *slog.Logger) {
	unix.Umask(0o022)
	if err := os.Chdir("/"); err != nil {
		log.Warn("working directory kept", "err", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		log.Error("orphans of containers go to another process", "err", err)
	}
	rename("crisp-executor")
	// With -1000 the kernel never kills this process for lack of memory, nor any process that
	// shares its memory, which is the point. On cgroup v2 libcontainer starts an exec in the
	// container's cgroup (CLONE_INTO_CGROUP), and since Go forks with CLONE_VM | CLONE_VFORK the
	// child shares our memory until its execve. If memory.oom.group is set, as kubelets do, the
	// kernel kills all processes of the cgroup, and all that share the memory of one of them,
	// whatever their scores (mm/oom_kill.c, __oom_kill_process). But it skips members that have
	// -1000 themselves (oom_kill_memcg_member), as the fork does, which inherits it.
	//
	// Processes that live longer have their own score: libcontainer's children set theirs first
	// of all, fastinit's get it, and oomscore starts all other programs.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		log.Info("oom score kept", "err", err)
	}
	if cgroup != "" && !kernel.NoCgroups() {
		if err := settle(cgroup); err != nil {
			log.Warn("cgroup kept", "err", err)
		}
	}
}

// rename sets the name that ps and pgrep show; executed from a memfd, the process would be named
// after a descriptor. Threads have their own names, which new threads inherit.
func rename(name string) {
	tasks, _ := filepath.Glob("/proc/self/task/*/comm")
	for _, comm := range tasks {
		os.WriteFile(comm, []byte(name), 0) // a thread may have ended
	}
}

// onTerm ends the executor on SIGTERM once no container is alive. The signal does not stop
// containers. But at a shutdown of the machine all processes get it, and systemd waits for the
// last one: so the executor exits when its last container has ended.
func onTerm(x *executor.Executor, log *slog.Logger) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	for range signals {
		err := x.Close()
		if err == nil {
			continue
		}
		log.Warn("executor will exit when no container is alive", "err", err)
		for x.CloseIdle() != nil {
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// bridge sends libcontainer's log to ours.
func bridge(log *slog.Logger) {
	logrus.SetOutput(io.Discard)
	logrus.AddHook(hook{log})
}

type hook struct{ log *slog.Logger }

func (hook) Levels() []logrus.Level {
	return []logrus.Level{logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel, logrus.WarnLevel}
}

func (h hook) Fire(e *logrus.Entry) error {
	args := []any{"text", strings.TrimSpace(e.Message)}
	if err, ok := e.Data[logrus.ErrorKey]; ok {
		args = append(args, "err", err)
	}
	h.log.Warn("libcontainer complained", args...)
	return nil
}
