package test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/noleaks"
	"github.com/crisp-cri/crisp/test/testdisk"
	"github.com/crisp-cri/crisp/test/testenv"
)

type nodeKey struct{}

// A node is one instance of crisp: its directories, its daemon if it runs, and the script's
// names for sandboxes and containers.
type node struct {
	binaries
	dir, root, state, socket string
	work                     string // where the script's files are

	cmd    *exec.Cmd
	plugin *plugin       // joined, or nil
	exited chan struct{} // closed when cmd has been waited for
	conn   *grpc.ClientConn

	agent      *scriptAgent // started by a script
	agentFlags []string     // of the last one started

	registry  *fakeRegistry
	sandboxes map[string]*cri.PodSandboxConfig
	ids       map[string]string // of sandboxes and containers, by their name in the script
	sandboxOf map[string]string // container name → sandbox name
	configs   map[string]*cri.ContainerConfig
	logNames  map[string]string // container name → log file, if it differs from the name
	marks     map[string]bool   // names by which our objects in the kernel are recognized
	wiped     bool
	manage    func(*exec.Cmd) // runs crispd as a service manager would, before its start
	user      bool            // in an ordinary user's namespace, see asUser
	owner     int             // the ordinary user who has started it, see byUser; 0 is root

	unmountAll []string // mounts that a script has made
	afterPods  []func() // remove what others than crisp keep of pods

	parents  []string         // cgroup_parents of the test, deepest first
	idle     noleaks.Snapshot // before the first pod
	expected []*regexp.Regexp // errors in the daemons' logs that the test provokes
}

// startNode starts an instance with the test image in it, for a test that is no script, and
// returns the path of its configuration, for a restart. The instance ends with the test,
// and nothing of it may be left. prepare runs before its daemon starts.
func startNode(t *testing.T, prepare ...func(n *node, config string) error) (n *node, config string) {
	t.Helper()
	testenv.NeedRoot(t, "it runs containers")
	before, err := noleaks.Take(programs...)
	if err != nil {
		t.Fatal(err)
	}
	if n, err = newNode(t.TempDir(), buildOnce(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.end(t)
		before.Check(t, n.mine, programs...)
	})
	config = filepath.Join(n.dir, "crispd.toml")
	if err := os.WriteFile(config, []byte(withInit("")), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := n.setLayers(os.Getenv("CRISP_LAYERS")); err != nil {
		t.Fatal(err)
	}
	for _, f := range prepare {
		if err := f(n, config); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
	if err := n.loadImage(); err != nil {
		t.Fatal(err)
	}
	return n, config
}

// loadImage loads the test image.
func (n *node) loadImage() error {
	load := exec.Command(filepath.Join(n.binaries.dir, "crisp"), "--runtime-endpoint", "unix://"+n.socket, "image", "load", "-i", n.archive)
	if out, err := load.CombinedOutput(); err != nil {
		return fmt.Errorf("crisp image load: %w\n%s", err, out)
	}
	return nil
}

// withInit makes libcontainer start all containers, if the tests run in that mode
// (docs/hacking.md): it adds the setting to a configuration, after the last top-level key.
func withInit(config string) string {
	if os.Getenv("CRISP_TEST_INIT") != "libcontainer" {
		return config
	}
	at := len(config)
	if i := strings.Index("\n"+config, "\n["); i >= 0 {
		at = i
	}
	return config[:at] + "fast_init = false\n" + config[at:]
}

func newNode(workdir string, b binaries) (*node, error) {
	// Not below workdir: the path of a socket has at most 108 bytes (unix(7)).
	dir, err := os.MkdirTemp("", "crisp-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // users in user namespaces must pass through it
		return nil, err
	}
	n := &node{
		binaries:  b,
		dir:       dir,
		work:      workdir,
		root:      filepath.Join(dir, "root"),
		state:     filepath.Join(dir, "run"),
		socket:    filepath.Join(dir, "run", "crisp.sock"),
		sandboxes: map[string]*cri.PodSandboxConfig{},
		ids:       map[string]string{},
		sandboxOf: map[string]string{},
		configs:   map[string]*cri.ContainerConfig{},
		logNames:  map[string]string{},
		marks:     map[string]bool{dir: true, workdir: true},
	}
	config := filepath.Join(workdir, "crispd.toml")
	if _, err := os.Stat(config); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(config, nil, 0o644); err != nil {
			return nil, err
		}
	}
	return n, os.WriteFile(filepath.Join(dir, "registries.conf"), nil, 0o644)
}

// setLayers makes crispd keep layers in the given form, whatever is configured; "" is the
// default.
func (n *node) setLayers(form string) error {
	if form == "" {
		return nil
	}
	dropIns := filepath.Join(n.dir, "config.d")
	if err := os.Mkdir(dropIns, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dropIns, "layers.toml"), fmt.Appendf(nil, "[image]\nlayers = %q\n", form), 0o644)
}

// withNode makes a command of a method of node. An error fails the script, unless the
// script's line starts with "!": then an error is required, and becomes the command's
// stderr.
func withNode(cmd func(*node, *testscript.TestScript, []string) error) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		n := ts.Value(nodeKey{}).(*node)
		err := cmd(n, ts, args)
		if err != nil {
			fmt.Fprintln(ts.Stderr(), err)
		}
		switch {
		case err != nil && !neg:
			ts.Fatalf("%v", err)
		case err == nil && neg:
			ts.Fatalf("it succeeded")
		}
	}
}

var errUsage = errors.New("usage: see script/README.md")

// daemonCmd is: daemon start [FLAG...] | start files SOFT HARD | stop | kill
func (n *node) daemonCmd(ts *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	switch args[0] {
	case "start":
		// TOML has no variables, and a script's configuration may contain $WORK.
		config := filepath.Join(n.dir, "crispd.toml")
		text := strings.ReplaceAll(ts.ReadFile("crispd.toml"), "$WORK", ts.Getenv("WORK"))
		if err := os.WriteFile(config, []byte(withInit(text)), 0o644); err != nil {
			return err
		}
		if len(args) == 4 && args[1] == "files" {
			n.manage = func(cmd *exec.Cmd) {
				cmd.Args = append([]string{"sh", "-c", `ulimit -Sn $0 && ulimit -Hn $1 && shift && exec "$@"`, args[2], args[3], cmd.Path}, cmd.Args[1:]...)
				cmd.Path = "/bin/sh"
			}
			return n.start(config, nil)
		}
		if len(args) == 3 && args[1] == "without" {
			n.manage = func(cmd *exec.Cmd) {
				cmd.Args = append([]string{"setpriv", "--inh-caps=-" + args[2], "--bounding-set=-" + args[2], cmd.Path}, cmd.Args[1:]...)
				cmd.Path = "/usr/bin/setpriv"
			}
			return n.start(config, nil)
		}
		if len(args) == 3 && args[1] == "as" && (args[2] == "user" || args[2] == "one-id") {
			if err := n.asUser(args[2] == "user"); err != nil {
				return err
			}
			return n.start(config, nil)
		}
		if len(args) >= 3 && args[1] == "by" && args[2] == "user" {
			if err := n.byUser(hostUser, args[3:]...); err != nil {
				return err
			}
			return n.start(config, nil)
		}
		return n.start(config, args[1:])
	case "stop":
		return n.stopDaemon(syscall.SIGTERM)
	case "kill":
		return n.stopDaemon(syscall.SIGKILL)
	}
	return errUsage
}

// diskCmd is: disk MIB [INODES] | fill | free
func (n *node) diskCmd(ts *testscript.TestScript, args []string) error {
	disk := filepath.Join(n.dir, "disk")
	switch {
	case len(args) == 1 && args[0] == "fill":
		return fillDisk(disk)
	case len(args) == 1 && args[0] == "free":
		return freeDisk(disk)
	}
	if err := n.mountDisk(disk, args); err != nil {
		return err
	}
	n.root = filepath.Join(disk, "root")
	ts.Setenv("ROOT", n.root)
	return nil
}

// mountDisk makes the directory dir, and mounts a file system of MIB [INODES] there.
func (n *node) mountDisk(dir string, args []string) error {
	inodes := "0" // unlimited
	switch len(args) {
	case 1:
	case 2:
		inodes = args[1]
	default:
		return errUsage
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+args[0]+"m,nr_inodes="+inodes); err != nil {
		return err
	}
	n.unmountAll = append(n.unmountAll, dir)
	return nil
}

// fillDisk uses up the blocks and inodes of the file system at dir, freeDisk frees them.
func fillDisk(dir string) error {
	junk := filepath.Join(dir, "junk")
	if err := os.MkdirAll(junk, 0o700); err != nil && !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return testdisk.Fill(junk)
}

func freeDisk(dir string) error { return os.RemoveAll(filepath.Join(dir, "junk")) }

// executorCmd is: executor kill | term
func (n *node) executorCmd(ts *testscript.TestScript, args []string) error {
	if len(args) != 1 || args[0] != "kill" && args[0] != "term" {
		return errUsage
	}
	pid, err := n.executorPid()
	if err != nil {
		return err
	}
	if args[0] == "term" {
		return syscall.Kill(pid, syscall.SIGTERM)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

func (n *node) executorPid() (int, error) { return testenv.ExecutorPid(n.state) }

func (n *node) start(config string, flags []string) error {
	if n.cmd != nil {
		return errors.New("the daemon runs already")
	}
	log, err := os.OpenFile(n.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	begins, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(n.binaries.dir, "crispd"),
		append([]string{"--config", config, "--root", n.root, "--state", n.state, "--socket", n.socket}, flags...)...)
	cmd.Env = append(os.Environ(), "CONTAINERS_REGISTRIES_CONF="+filepath.Join(n.dir, "registries.conf"))
	if n.manage != nil {
		n.manage(cmd)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	n.conn, err = grpc.NewClient("unix://"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return err
	}
	n.wiped = false
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		_, err := cri.NewRuntimeServiceClient(n.conn).Version(ctx, &cri.VersionRequest{})
		cancel()
		if err == nil {
			n.cmd, n.exited = cmd, exited
			return n.takeIdle()
		}
		select {
		case <-exited:
			n.conn.Close()
			text, err := os.ReadFile(n.log())
			if err != nil {
				return err
			}
			return fmt.Errorf("crispd: %v: %s", cmd.ProcessState, bytes.TrimSpace(text[begins:]))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// mine reports whether a line of noleaks is about this instance: it contains one of its
// directories, the ID of one of its pods or containers, or its bridge's name.
func (n *node) mine(line string) bool {
	for mark := range n.marks {
		if strings.Contains(line, mark) {
			return true
		}
	}
	return false
}

// remember records the marks of the objects that exist now.
func (n *node) remember() {
	for _, kind := range []string{"sandboxes", "containers"} {
		entries, _ := os.ReadDir(filepath.Join(n.root, kind))
		for _, e := range entries {
			n.marks[e.Name()] = true
		}
	}
	for _, id := range n.ids {
		n.marks[id] = true
	}
	state := sha256.Sum256([]byte(n.state))
	n.marks["crisp-executor-"+hex.EncodeToString(state[:6])] = true
	configs, _ := filepath.Glob(filepath.Join(n.root, "cni", "net.d", "*"))
	for _, path := range configs {
		data, _ := os.ReadFile(path)
		for _, bridge := range regexp.MustCompile(`"bridge": *"([^"]+)"`).FindAllSubmatch(data, -1) {
			n.marks[string(bridge[1])] = true
		}
	}
}

func (n *node) stopDaemon(sig syscall.Signal) error {
	n.remember()
	if n.cmd == nil {
		return errors.New("the daemon does not run")
	}
	n.conn.Close()
	if err := n.cmd.Process.Signal(sig); err != nil && (sig != syscall.SIGKILL || !errors.Is(err, os.ErrProcessDone)) {
		return err // one that has ended by itself was not killed, but is gone
	}
	select {
	case <-n.exited:
	case <-time.After(30 * time.Second):
		return errors.New("crispd is still there after 30 s")
	}
	state := n.cmd.ProcessState
	n.cmd = nil
	if sig == syscall.SIGTERM && !state.Success() {
		return fmt.Errorf("crispd ended with %v", state)
	}
	return nil
}

// noleaksCmd ends the instance as an uninstallation would; the check of the kernel comes
// after the script's other clean-up.
func (n *node) noleaksCmd(ts *testscript.TestScript, args []string) error {
	if n.agent != nil {
		if err := n.withoutManifests(); err != nil {
			return err
		}
	}
	if n.cmd != nil {
		if err := n.withoutPods(); err != nil {
			return err
		}
		if err := n.stopDaemon(syscall.SIGTERM); err != nil {
			return err
		}
	}
	return n.wipe()
}

func (n *node) wipe() error {
	if n.wiped {
		return nil
	}
	n.remember()
	n.keepExecutorLog()
	out, err := n.command("wipe", "--all", "--config", "", "--root", n.root, "--state", n.state).CombinedOutput()
	if err != nil {
		return fmt.Errorf("crispd wipe: %w: %s", err, out)
	}
	n.wiped = true
	for _, dir := range []string{n.root, n.state} {
		if left, err := os.ReadDir(dir); err == nil {
			return fmt.Errorf("crispd wipe left %s with %d entries", dir, len(left))
		}
	}
	return nil
}

func (n *node) end(t testing.TB) {
	if n.cmd != nil {
		if err := n.withoutPods(); err != nil {
			t.Error(err)
		}
		if err := n.stopDaemon(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	if err := n.wipe(); err != nil {
		t.Error(err)
	}
	n.checkLogs(t)
	if n.registry != nil {
		n.registry.close()
	}
	for _, m := range n.unmountAll {
		syscall.Unmount(m, syscall.MNT_DETACH)
	}
	if err := os.RemoveAll(n.dir); err != nil {
		t.Error(err)
	}
}
