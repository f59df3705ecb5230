// Shimtest is a containerd shim for tests. It has the command line and the Task API (version 2 or 3) of
// one, by containerd's own modules, and runs containers as child processes in mount and PID namespaces
// of their own. It can hang, die and fail in each call, and check the dialect of shims that cannot run
// everywhere: Kata's and runwasi's.
//
//	shimtest -namespace NS -id ID -address ADDR [-bundle DIR] start|delete
//
// What it does besides is in the JSON file that is named like the program with ".json" added (see
// Behaviour of package shimtest/behaviour): a test copies or links the program for each handler. The file
// is read again at each call. Each request is appended to the file Record in it, as a line of JSON.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/crisp-cri/crisp/test/shimtest/behaviour"
)

// flags are what containerd calls a shim with.
var flags struct {
	namespace, id, address, bundle string
	debug                          bool
}

func main() {
	if os.Getenv(initEnv) != "" {
		runInit()
	}
	flag.StringVar(&flags.namespace, "namespace", "", "")
	flag.StringVar(&flags.id, "id", "", "")
	flag.StringVar(&flags.address, "address", "", "")
	flag.StringVar(&flags.bundle, "bundle", "", "")
	flag.BoolVar(&flags.debug, "debug", false, "")
	flag.String("publish-binary", "", "")
	flag.Parse()
	act := map[string]func() error{"start": start, "delete": remove, "": serve, machineArg: runMachine}[flag.Arg(0)]
	if act == nil || flags.namespace == "" || flags.id == "" {
		fatal(fmt.Errorf("usage: shimtest -namespace NS -id ID -address ADDR start|delete"))
	}
	if err := act(); err != nil {
		fatal(err)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "shimtest:", err)
	os.Exit(1)
}

// program is the path of this program, as it was called.
func program() string {
	if path := os.Getenv("SHIMTEST_PROGRAM"); path != "" {
		return path
	}
	return os.Args[0]
}

// load returns the behaviour of now.
func load() behaviour.Behaviour {
	b, err := behaviour.Load(program())
	if err != nil {
		fatal(err)
	}
	return b
}

// A spec is what is read of config.json.
type spec struct {
	Annotations map[string]string
	Root        struct {
		Path     string
		Readonly bool
	}
	Process process
	Mounts  []mount
	Linux   struct {
		Namespaces []struct{ Type, Path string }
	}
}

type process struct {
	Terminal bool
	User     struct {
		UID, GID       uint32
		AdditionalGids []uint32
	}
	Args, Env []string
	Cwd       string
}

type mount struct {
	Destination, Type, Source string
	Options                   []string
}

func readSpec(bundle string) (s spec, err error) {
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

// kind is what a container is in its pod: "sandbox", "container", or "" without annotations.
func (s spec) kind() string { return s.Annotations["io.kubernetes.cri.container-type"] }

// root is the path of the root file system.
func (s spec) root(bundle string) string {
	if filepath.IsAbs(s.Root.Path) {
		return s.Root.Path
	}
	return filepath.Join(bundle, s.Root.Path)
}

// start answers with the address of the shim, which it starts unless the pod has one.
func start() error {
	b := load()
	s, err := readSpec(".")
	kind := s.kind()
	if b.Sandbox && errors.Is(err, fs.ErrNotExist) {
		kind, err = "sandbox", nil // as Kata's shim does
	}
	if err != nil {
		return err
	}
	b.Write("start", kind, flags.id, map[string]any{"args": os.Args[1:]})
	params, err := readParams()
	if err != nil {
		return err
	}
	disturb(b, "start", kind)
	group := flags.id
	if id := s.Annotations["io.kubernetes.cri.sandbox-id"]; id != "" {
		group = id
	}
	dir := params.GetSocketDir()
	if dir == "" {
		dir = filepath.Dir(program())
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(flags.address + "/" + flags.namespace + "/" + group))
	path := filepath.Join(dir, fmt.Sprintf("%x", sum[:20]))
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return answer(b, path)
	}
	_ = os.Remove(path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	socket, err := l.File()
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", "-namespace", flags.namespace, "-id", flags.id, "-address", flags.address)
	cmd.Env = append(os.Environ(), "SHIMTEST_PROGRAM="+program(), "SHIMTEST_SOCKET="+path)
	cmd.ExtraFiles = []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return answer(b, path)
}

// readParams reads the stdin of start as containerd's shims do: its ID is that of the arguments.
func readParams() (*bootapi.BootstrapParams, error) {
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	params := &bootapi.BootstrapParams{}
	if err := proto.Unmarshal(data, params); err != nil {
		return nil, err
	}
	if params.InstanceID != flags.id || params.Namespace != flags.namespace {
		return nil, fmt.Errorf("stdin is for container %q in %q", params.InstanceID, params.Namespace)
	}
	return params, nil
}

// answer prints an address as the behaviour wants it.
func answer(b behaviour.Behaviour, path string) error {
	version := b.TaskVersion()
	result := &bootapi.BootstrapResult{Version: int32(version), Address: "unix://" + path, Protocol: "ttrpc"}
	var out []byte
	var err error
	switch b.Answer {
	case "", "message":
		out, err = proto.Marshal(result)
	case "json":
		out, err = json.Marshal(map[string]any{"version": version, "address": result.Address, "protocol": "ttrpc"})
	case "address":
		out = []byte(result.Address)
	default:
		out = []byte(b.Answer)
	}
	if err == nil {
		_, err = os.Stdout.Write(out)
	}
	return err
}

// remove ends what a shim that died has left of a container.
func remove() error {
	b := load()
	s, _ := readSpec(".")
	b.Write("delete", s.kind(), flags.id, map[string]any{"args": os.Args[1:]})
	disturb(b, "delete", s.kind())
	pid := 0
	if data, err := os.ReadFile(pidFile); err == nil {
		if pid, err = strconv.Atoi(string(data)); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	out, err := proto.Marshal(&task.DeleteResponse{Pid: uint32(pid), ExitStatus: 137, ExitedAt: timestamppb.Now()})
	if err == nil {
		_, err = os.Stdout.Write(out)
	}
	return err
}

// disturb hangs or dies in a call, if the behaviour wants it: by the call's name, or by its name and what
// the container is ("Create sandbox").
func disturb(b behaviour.Behaviour, call, kind string) {
	is := func(calls []string) bool {
		return slices.Contains(calls, call) || slices.Contains(calls, call+" "+kind)
	}
	if is(b.Hang) {
		time.Sleep(time.Hour)
	}
	if is(b.Die) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// openLog makes the FIFO "log" of the bundle stderr, as containerd's shims do: it waits for a reader.
func openLog() error {
	log, err := os.OpenFile("log", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // else it would die of a message while no executor reads
	return unix.Dup3(int(log.Fd()), 2, 0)
}

// lines joins the parts of an error for the log, which is read by lines.
func lines(text string) string { return strings.ReplaceAll(text, "\n", " ") }
