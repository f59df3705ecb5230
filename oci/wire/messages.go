package wire

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/crilog"
)

// The methods of the executor. The request types describe them.
const (
	MethodHello       = "hello"       // nil → HelloReply
	MethodPing        = "ping"        // nil → nil, from a working executor: one that is busy with an upgrade, or hangs, does not answer
	MethodWarm        = "warm"        // nil → nil: a run follows within about 100 ms; this makes it faster
	MethodRun         = "run"         // RunRequest → RunReply + descriptors
	MethodPodInit     = "podinit"     // PodInitRequest → RunReply + pidfd
	MethodExec        = "exec"        // ExecRequest → ExecReply + descriptors
	MethodExecWait    = "exec.wait"   // ExecRef → ExecWaitReply
	MethodExecKill    = "exec.kill"   // ExecRef → nil
	MethodExecResize  = "exec.resize" // ExecResizeRequest → nil
	MethodSignal      = "signal"      // SignalRequest → nil
	MethodDelete      = "delete"      // Ref → nil
	MethodAttach      = "attach"      // AttachRequest → nil + descriptors
	MethodResize      = "resize"      // ResizeRequest → nil
	MethodReopenLog   = "reopenlog"   // Ref → nil
	MethodUpdate      = "update"      // UpdateRequest → nil
	MethodStats       = "stats"       // Ref → StatsReply
	MethodList        = "list"        // nil → []Info
	MethodDescriptors = "hold"        // Ref → nil + the descriptors of MethodRun, for a later crispd
	MethodFreeze      = "freeze"      // FreezeRequest → nil; undone when the connection ends
	MethodThaw        = "thaw"        // ThawRequest → nil
	MethodCheckpoint  = "checkpoint"  // CheckpointRequest → nil
	MethodRestore     = "restore"     // RestoreRequest → RunReply + descriptors, as MethodRun
	MethodSubscribe   = "subscribe"   // nil → nil; from now on the connection gets Events
	MethodAdopt       = "adopt"       // AdoptRequest + descriptors → nil
	MethodUpgrade     = "upgrade"     // UpgradeRequest → nil, then the connection ends
	MethodProfile     = "profile"     // ProfileRequest → ProfileReply
	MethodShutdown    = "shutdown"    // nil → nil, then the executor exits; fault.WrongState while it has containers
)

// Names of descriptors. Those of stdio are the executor's ends: the read ends of
// stdout and stderr, the write end of stdin, the master of the pty.
const (
	FDPid    = "pidfd"
	FDStdin  = "stdin"
	FDStdout = "stdout"
	FDStderr = "stderr"
	FDPTY    = "pty"
)

type HelloReply struct {
	Version  string // of the program
	Protocol int
	Pid      int
}

type ProfileRequest struct {
	Name  string // as in runtime/pprof: "goroutine", "heap" or "allocs"
	Debug int    // 0: for go tool pprof; else as text, see pprof.Profile.WriteTo
}

// MaxProfile is the largest profile, in bytes. With 1000 pods the goroutines, as text, take some
// 4 MB.
const MaxProfile = 32 << 20

// ProfileReply has a profile, of at most MaxProfile.
type ProfileReply struct{ Data []byte }

type Ref struct{ ID string }

// RunRequest creates a container and starts its program. The answer comes when the program has
// been executed; an error names the file that could not be, and leaves nothing behind. A call
// that is cancelled fails; if its client's connection ends, the start continues. It may take 5
// minutes, a hook 1 minute unless it has a timeout.
//
// The answer carries a pidfd of the container's init and duplicates of the executor's ends of
// its stdio, for MethodAdopt. stdin is not among them if StdinOnce is set: another holder would
// keep the container from seeing end of file.
type RunRequest struct {
	Settings
	Spec *specs.Spec // its rootfs is mounted, its linux.cgroupsPath set
	// Env, if not nil, replaces spec.process.env. Values need not be UTF-8.
	Env [][]byte
	// SystemdCgroup lets systemd make the cgroups: linux.cgroupsPath is then
	// "slice:prefix:name".
	SystemdCgroup bool
	// PrepareDir is a directory in which the executor may mount what the container will
	// bind-mount; it need not exist. Its mount has private propagation. "" = none.
	PrepareDir string `json:"Stage,omitempty"`
	// Engine is the path of the OCI runtime that runs it; "" = libcontainer.
	Engine string `json:",omitempty"`
	// Shim is the containerd shim that runs it, in place of libcontainer and Engine; nil = none.
	Shim *Shim `json:",omitempty"`
	// Fast lets the fast init start it where it can; else libcontainer's does.
	Fast bool `json:",omitempty"`
	// PIDTarget is the container whose PID namespace the spec names by its PID: it must run until
	// that is joined. "" = none.
	PIDTarget string `json:",omitempty"`
}

// A Shim is a containerd shim (containerd's core/runtime/v2/README.md): a program that runs
// containers and is asked over ttrpc, in containerd's Task API. Their processes are its children,
// or on another kernel.
type Shim struct {
	Path        string // of the program
	OptionsType string `json:",omitempty"` // type URL of Options; "" = none
	Options     []byte `json:",omitempty"` // a protobuf message that the shim defines
	// Sandbox is the ID of the container whose shim runs this one, too; "" = it gets its own.
	Sandbox string `json:",omitempty"`
	// Mounts gives the shim the root as a mount, which it makes itself at "rootfs" in its bundle;
	// otherwise the spec names the directory.
	Mounts bool `json:",omitempty"`
	// SandboxAPI has the shim make the sandbox by its Sandbox API, in place of a container with a
	// spec: for the sandbox's own container, Pod is what the API takes, CRI's PodSandboxConfig.
	SandboxAPI bool   `json:",omitempty"`
	Pod        []byte `json:",omitempty"`
}

// ShimNamespace keeps shims and their containers apart from those of other instances on this machine.
// executor is libcontainer's state directory.
func ShimNamespace(executor string) string {
	h := fnv.New64a()
	h.Write([]byte(executor))
	return fmt.Sprintf("crisp-%016x", h.Sum64())
}

// Settings are what an executor has to know about a container as long as it runs.
type Settings struct {
	ID string

	Stdin     bool // the container gets a pipe; else /dev/null
	StdinOnce bool // closed with the first attached stdin
	TTY       bool

	LogPath    string       // absolute; "" = output is discarded
	LogMaxLine int          // per log record, in bytes; 0 = 16384
	LogLimit   crilog.Limit `json:",omitzero"`
	ExitPath   string       // where the Exit is written before it becomes an event
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

// An Exit is how a container ended. It is sent as an event and written to ExitPath.
type Exit struct {
	ID        string
	Code      int32 // 128+n if ended by signal n; 255 if lost
	At        time.Time
	OOMKilled bool   // by the kernel's OOM killer, or because that had just killed another of its processes
	Reason    string // Completed, Error, OOMKilled, ShimGone or Unknown
	Message   string // of ShimGone and Unknown: why
}

const (
	ReasonCompleted = "Completed"
	ReasonError     = "Error"
	ReasonOOMKilled = "OOMKilled"
	ReasonShimGone  = "ShimGone" // its shim ended under it; the message names that
	ReasonUnknown   = "Unknown"
)

// ReasonOf returns the reason of an Exit that is known.
func ReasonOf(code int32, oomKilled bool) string {
	switch {
	case oomKilled:
		return ReasonOOMKilled
	case code == 0:
		return ReasonCompleted
	}
	return ReasonError
}

// Info is one container in the reply of MethodList. Exit is nil while it runs.
type Info struct {
	ID string
	RunReply
	Exit *Exit
}

const (
	EventExit = "exit" // Exit is set
	EventOOM  = "oom"  // a process of the container was OOM-killed; the container may run on
)

// An Event is something that happened to a container.
type Event struct {
	Kind string
	ID   string
	Exit *Exit
	// Kills is how many of its processes have been OOM-killed so far; 0 with
	// EventOOM means that the executor is older than this field.
	Kills int64 `json:",omitempty"`
}

// PodInitRequest starts the static pod init as the first process of a new PID namespace, in its
// own empty root. It exits on SIGTERM. Its exit is an Event like a container's, and signal,
// delete, hold, list and adopt apply to it.
type PodInitRequest struct {
	ID         string
	Path       string            // of crisp-podinit, a static program
	Namespaces map[string]string // "net", "uts", "ipc", "user" → path; absent = the executor's
	User       uint32            // and group; 0 = 65534
	Label      string            // SELinux, of the process; "" = the policy's choice
	FileLabel  string            // SELinux, of the program, which all pods share
	MountLabel string            // SELinux, of the pod's files; "" = it has none
	// Cgroup is its cgroup, in the format of linux.cgroupsPath.
	Cgroup        string
	SystemdCgroup bool
	ExitPath      string // as in RunRequest; "" = the exit is only an event
	Fast          bool   `json:",omitempty"` // as in RunRequest
}

// ExecRequest starts another process in a running container. The answer carries
// stdin (if Stdin), stdout and stderr, or pty: the other ends of the process's
// stdio, which the executor does not keep. If TTY is set, Stdin is ignored. In a shim's container
// the terminal is the shim's: the answer then carries stdin and stdout instead of pty.
//
// The process is killed, with everything that it started, when the connection that
// asked for it ends, or the call is cancelled before its answer. The error is
// fault.WrongState if the container is frozen.
type ExecRequest struct {
	ID            string          // of the container
	Process       json.RawMessage // specs.Process
	Env           [][]byte        // as in RunRequest
	Stdin, TTY    bool
	Width, Height uint16 // of the pty, in characters; 0 = the kernel's default
	Fast          bool   `json:",omitempty"` // as in RunRequest
}

type ExecReply struct {
	ExecID string
	Pid    int
}

// ExecRef names an exec.
//
// exec.wait answers when the process has ended, and forgets it: a second call gets
// fault.NotFound. After an upgrade of the executor, the exec belongs to the connection that
// calls exec.wait first.
//
// exec.kill kills the process and everything it started. It is no error if the process has ended
// or is unknown.
type ExecRef struct{ ExecID string }

// ExecResizeRequest sets the size of the terminal of an exec in a shim's container, in characters;
// other execs' terminals are their callers'.
type ExecResizeRequest struct {
	ExecID        string
	Width, Height uint16
}

// ExecWaitReply is the exit code of an exec, 128+n for signal n.
type ExecWaitReply struct{ Code int32 }

// SignalRequest signals a container's init, or with All every process of its cgroup: SIGKILL
// then misses none, even if they fork. It is no error if the container has exited; with All,
// processes left in its cgroup are signalled. For a container that is being started the error is
// fault.WrongState, but SIGKILL makes its start fail.
type SignalRequest struct {
	ID     string
	Signal int
	All    bool
}

// AttachRequest asks for the output of a container from now on, as the read ends of new pipes:
// stdout and, without a tty, stderr; with Stdin, if the container has one, also for the write
// end of a pipe that feeds it.
//
// The output ends with the container, or when its reader lags so far behind that its pipe is
// full: the container does not wait for a client that only watches. It does wait for one with
// stdin or a terminal, as long as that reads something every 10 s.
//
// A client detaches by closing all descriptors; with RunRequest.StdinOnce the container's stdin
// closes with the first attached one that its client closes. The exit of the client's process
// closes nothing: its successor may attach again.
type AttachRequest struct {
	ID    string
	Stdin bool
}

// ResizeRequest sets the size of a container's terminal, in characters.
type ResizeRequest struct {
	ID            string
	Width, Height uint16
}

// StatsReply has the counters of a container that a shim runs outside of the host's cgroups, in the
// shim's words; the error is fault.WrongState for any other container.
type StatsReply struct {
	Type string // type URL, such as "io.containerd.cgroups.v2.Metrics"
	Data []byte // the message
	// Processes is the number of the container's processes, if the message does not have it.
	Processes uint64 `json:",omitempty"`
}

// UpdateRequest changes the resources of a running container. Unset fields change nothing, and
// after an error everything is unchanged.
type UpdateRequest struct {
	ID          string
	Resources   json.RawMessage // specs.LinuxResources
	OOMScoreAdj *int            `json:",omitempty"` // of all its processes
}

// AdoptRequest hands a container of a dead executor to its successor. The descriptors are those
// of the answer to its run. If the process has ended meanwhile, its exit follows as an event at
// once. Its exit code is available since Linux 6.15 (PIDFD_GET_INFO); on older kernels it is
// 255, Unknown.
type AdoptRequest struct {
	Settings
	RunReply
	OOMKills int64 `json:",omitempty"` // how many EventOOM has reported
}

// UpgradeRequest has the executor replace itself by the program at Path (execve(2)): same
// process, same children. Clients must reconnect.
type UpgradeRequest struct{ Path string }

// FreezeRequest freezes every process of some running containers, all or none, for a checkpoint.
// They stay frozen until MethodThaw, or until the requesting connection ends, as its client may
// have died. The error is fault.WrongState without a usable CRIU, or if a shim refuses.
type FreezeRequest struct{ IDs []string }

// ThawRequest thaws containers, frozen or not; an unknown one is no error. A CRIU that works
// below Dir, for this executor or a dead one, is killed first: it would freeze them again when
// it finishes. Dir "" = no CRIU.
type ThawRequest struct {
	IDs []string
	Dir string
}

// CheckpointRequest writes the processes of a running container to files, with CRIU or as its shim does
// that, and leaves them running. If Frozen is set the container must have been frozen by MethodFreeze, else the
// error is fault.WrongState. Cancelling the call kills CRIU.
type CheckpointRequest struct {
	ID string
	// Dir is an empty directory: it gets checkpoint/ with CRIU's images, dump.log
	// and stats-dump, or checkpoint/ with what a shim makes of its own.
	Dir    string
	Frozen bool
}

// RestoreRequest is a RunRequest whose first process is not executed but restored, with all its
// descendants, from the output of CheckpointRequest. The processes keep their arguments,
// environment, users and limits; their surroundings (namespaces, mounts, cgroup, stdio) are
// those of Spec. CRIU writes its restore.log to Dir.
type RestoreRequest struct {
	RunRequest
	Dir string
}
