package wire

import (
	"encoding/json"
	"time"
)

// The methods of the executor. What each takes and gives is said at its request.
const (
	MethodHello      = "hello"      // nil → HelloReply
	MethodPing       = "ping"       // nil → nil, from an executor that can work: one that is busy with an upgrade, or stands still, does not answer
	MethodWarm       = "warm"       // nil → nil: a run will follow within some 100 ms; it will be quicker
	MethodRun        = "run"        // RunRequest → RunReply + descriptors
	MethodPodInit    = "podinit"    // PodInitRequest → RunReply + pidfd
	MethodExec       = "exec"       // ExecRequest → ExecReply + descriptors
	MethodExecWait   = "exec.wait"  // ExecRef → ExecWaitReply
	MethodExecKill   = "exec.kill"  // ExecRef → nil
	MethodSignal     = "signal"     // SignalRequest → nil
	MethodDelete     = "delete"     // Ref → nil
	MethodAttach     = "attach"     // AttachRequest → nil + descriptors
	MethodResize     = "resize"     // ResizeRequest → nil
	MethodReopenLog  = "reopenlog"  // Ref → nil
	MethodUpdate     = "update"     // UpdateRequest → nil
	MethodList       = "list"       // nil → []Info
	MethodHold       = "hold"       // Ref → nil + the descriptors of MethodRun, for a crispd that came later
	MethodFreeze     = "freeze"     // FreezeRequest → nil; undone when the connection ends
	MethodThaw       = "thaw"       // ThawRequest → nil
	MethodCheckpoint = "checkpoint" // CheckpointRequest → nil
	MethodRestore    = "restore"    // RestoreRequest → RunReply + descriptors, as MethodRun
	MethodSubscribe  = "subscribe"  // nil → nil; from here on the connection gets Events
	MethodAdopt      = "adopt"      // AdoptRequest + descriptors → nil
	MethodUpgrade    = "upgrade"    // UpgradeRequest → nil, then the connection ends
	MethodShutdown   = "shutdown"   // nil → nil, then the executor exits; fault.WrongState while it has containers
)

// Names of descriptors. Those of stdio are the executor's ends: the reading ends
// of stdout and stderr, the writing end of stdin, the master of the pty.
const (
	FDPid    = "pidfd"
	FDStdin  = "stdin"
	FDStdout = "stdout"
	FDStderr = "stderr"
	FDPTY    = "pty"
)

// HelloReply says who answers.
type HelloReply struct {
	Version  string // of the program
	Protocol int
	Pid      int
}

// A Ref names a container.
type Ref struct{ ID string }

// RunRequest creates a container and starts its program. The answer comes when
// the program has been executed; an error says which file could not be, and
// leaves nothing behind. A call that is given up is an error; if its client's
// connection ends, the start goes on. It may take 5 minutes, a hook 1 unless it has a
// timeout.
//
// With the answer come a pidfd of the container's init and duplicates of the
// executor's ends of its stdio, for MethodAdopt. stdin is not among them if
// StdinOnce is set: whoever held it would keep the container from ever seeing
// its end.
type RunRequest struct {
	ID   string
	Spec json.RawMessage // specs.Spec; its rootfs is mounted, its linux.cgroupsPath set
	// Env, if not nil, replaces spec.process.env. Values need not be UTF-8.
	Env [][]byte

	Stdin     bool // the container gets a pipe, else /dev/null
	StdinOnce bool // its end follows the first attached stdin's
	TTY       bool

	LogPath    string // absolute; "" = output is thrown away
	LogMaxLine int    // bytes of a line in one log record; 0 = 16384
	ExitPath   string // where the Exit is written, and synced, before it is told
	// SystemdCgroup has cgroups made by systemd: linux.cgroupsPath is then
	// "slice:prefix:name".
	SystemdCgroup bool
	// Stage is a directory in which the executor may mount what the container will
	// bind; it need not exist. It lies on a mount of private propagation. "" = none.
	Stage string `json:",omitempty"`
	// Engine is the path of the OCI runtime that runs it; "" = libcontainer.
	Engine string `json:",omitempty"`
}

// RunReply describes a container's first process.
type RunReply struct {
	Pid       int       // in the executor's namespace
	StartTime uint64    // field 22 of /proc/<pid>/stat, proc_pid_stat(5)
	StartedAt time.Time // when its program was executed
	// Cgroups maps a controller to the absolute directory of the container's
	// cgroup; the key "" is the v2 one.
	Cgroups map[string]string
}

// An Exit is how a container ended: told as an event and written to ExitPath.
type Exit struct {
	ID        string
	Code      int32 // 128+n if ended by signal n; 255 if lost
	At        time.Time
	OOMKilled bool   // the kernel's OOM killer took a process of its cgroup
	Reason    string // Completed, Error, OOMKilled or Unknown
	Message   string // why the reason is Unknown
}

// Reasons of an Exit.
const (
	ReasonCompleted = "Completed"
	ReasonError     = "Error"
	ReasonOOMKilled = "OOMKilled"
	ReasonUnknown   = "Unknown"
)

// Info is one container as MethodList tells it. Exit is nil while it runs.
type Info struct {
	ID string
	RunReply
	Exit *Exit
}

// Event kinds.
const (
	EventExit = "exit" // Exit is set
	EventOOM  = "oom"  // a process of the container was killed for memory; it may run on
)

// An Event is something that happened to a container.
type Event struct {
	Kind string
	ID   string
	Exit *Exit
	// Kills is how many of its processes have been killed for memory so far; 0 with
	// EventOOM means that the executor is older than this field.
	Kills int64 `json:",omitempty"`
}

// PodInitRequest starts the static pod init as the first process of a new PID
// namespace, in an empty root of its own. It ends on SIGTERM. Its exit is an
// Event like a container's, and signal, delete, hold, list and adopt apply to it.
type PodInitRequest struct {
	ID         string
	Path       string            // of crisp-podinit, a static program
	Namespaces map[string]string // "net", "uts", "ipc", "user" → path; absent = the executor's
	User       uint32            // and group; 0 = 65534
	Label      string            // SELinux, of the process; "" = the policy's choice
	FileLabel  string            // SELinux, of the program; it is one for all pods
	MountLabel string            // SELinux, of the pod's files; "" = it has none
	// Cgroup is where it runs, written as linux.cgroupsPath is.
	Cgroup        string
	SystemdCgroup bool
	ExitPath      string // as RunRequest's; "" = the exit is only told
}

// ExecRequest starts another process in a running container. With the answer
// come stdin (if Stdin), stdout and stderr, or pty: the other ends of the
// process's own stdio, which the executor does not keep. If TTY is set, Stdin
// means nothing.
//
// The process is killed, with all that it started, when the connection that
// asked for it ends, and when the call is given up before its answer. In a container
// that is frozen it is fault.WrongState.
type ExecRequest struct {
	ID            string          // of the container
	Process       json.RawMessage // specs.Process
	Env           [][]byte        // as RunRequest's
	Stdin, TTY    bool
	Width, Height uint16 // characters, of the pty; 0 = as the kernel makes it
}

// ExecReply names the new process.
type ExecReply struct {
	ExecID string
	Pid    int
}

// ExecRef names an exec.
//
// exec.wait answers when the process has ended and forgets it; asking again is
// fault.NotFound. After an upgrade of the executor, the first exec.wait makes the
// exec its connection's.
//
// exec.kill ends the process and everything it started; one that has ended, or
// is not known, is no error.
type ExecRef struct{ ExecID string }

// ExecWaitReply is how an exec ended; Code is 128+n for signal n.
type ExecWaitReply struct{ Code int32 }

// SignalRequest signals a container's init, or with All every process of its
// cgroup: SIGKILL then misses none, whatever forks. A container that has exited
// is no error; with All, what it left in its cgroup is signalled. One that is being
// started is fault.WrongState, but SIGKILL makes its start fail.
type SignalRequest struct {
	ID     string
	Signal int
	All    bool
}

// AttachRequest asks for what a container writes from now on, as the reading
// ends of new pipes: stdout and, without a tty, stderr; and with Stdin, if the
// container has one, for the writing end of a pipe that feeds it.
//
// The output ends when the container has, or when its reader is so far behind
// that its pipe is full: the container does not wait for who only looks on. For who
// types, or has a terminal, it waits as long as something is read every 10 s.
//
// Closing all descriptors is how to detach; with RunRequest.StdinOnce the container's
// stdin closes with the first attached one that its client closes. The end of the
// client's process closes nothing: the next one may attach again.
type AttachRequest struct {
	ID    string
	Stdin bool
}

// ResizeRequest sets the size of a container's terminal, in characters.
type ResizeRequest struct {
	ID            string
	Width, Height uint16
}

// UpdateRequest changes the resources of a running container. What is not set
// stays as it is, and an error means that all of it does.
type UpdateRequest struct {
	ID          string
	Resources   json.RawMessage // specs.LinuxResources
	OOMScoreAdj *int            `json:",omitempty"` // of all its processes
}

// AdoptRequest hands a container of an executor that died to its successor. The
// descriptors are those that came with the answer to its run. If the process has
// ended meanwhile, its exit follows as an event at once. Its exit code can be
// had since Linux 6.15 (PIDFD_GET_INFO); else it is 255, Unknown.
type AdoptRequest struct {
	ID string
	RunReply
	Stdin, StdinOnce, TTY bool
	LogPath               string
	LogMaxLine            int
	ExitPath              string
	OOMKills              int64 `json:",omitempty"` // those of which an EventOOM has told
}

// UpgradeRequest has the executor execute the program at Path in its own place:
// same process, same children. Clients connect again.
type UpgradeRequest struct{ Path string }

// FreezeRequest stops every process of some running containers, all or none, to be
// checkpointed. They stay stopped until MethodThaw, or until the connection that
// asked for it ends: who froze them may not be there any more. Without a usable
// CRIU the answer is fault.WrongState.
type FreezeRequest struct{ IDs []string }

// ThawRequest lets containers run on, frozen or not; one that is not known is no
// error. A CRIU that works below Dir, for this executor or one that died, is ended
// first: it would freeze them again when it is through. Dir "" = there is none.
type ThawRequest struct {
	IDs []string
	Dir string
}

// CheckpointRequest writes the processes of a running container to files, by
// CRIU, and leaves them as they are. If Frozen is set the container must be so by
// MethodFreeze, else the answer is fault.WrongState. A call that is given up ends
// CRIU.
type CheckpointRequest struct {
	ID string
	// Dir is an empty directory: it gets checkpoint/ with CRIU's images, dump.log
	// and stats-dump.
	Dir    string
	Frozen bool
}

// RestoreRequest is a RunRequest whose first process is not executed but comes, with
// all that it had started, from what CheckpointRequest has written. The processes
// have the arguments, environment, users and limits that they had then; what
// surrounds them (namespaces, mounts, cgroup, stdio) is what Spec says. CRIU writes
// its restore.log into Dir.
type RestoreRequest struct {
	RunRequest
	Dir string
}
