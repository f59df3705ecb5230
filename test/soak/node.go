package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// patience bounds every call and every wait; anything slower counts as hung.
const patience = 2 * time.Minute

// A node is a crispd with its executor, and a registry on loopback.
type node struct {
	bin, testbin     string
	dir, root, state string
	registry         *registryServer
	calls            *calls

	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has ended

	conn    *grpc.ClientConn
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient

	mu    sync.Mutex
	downs []*down   // guarded by mu
	both  time.Time // last time when both daemons were killed at once; guarded by mu

	before, after *measurement
}

// A down is a time in which a daemon did not answer because it was killed.
type down struct {
	from, to time.Time // to is zero while it lasts
}

// again is how long after a kill a call may still fail because of it: an answer was under way, or
// gRPC has not reconnected yet.
const again = 2 * time.Second

var (
	trouble  = regexp.MustCompile(`panicked|panic:|DATA RACE|fatal error|"level":"ERROR"`)
	reported = regexp.MustCompile(`"msg":"rpc failed"`) // its caller got the error
)

func newNode(o options) (*node, error) {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return nil, err
	}
	for _, program := range []string{filepath.Join(bin, "crispd"), filepath.Join(bin, "crisp-executor"), o.testbin} {
		if _, err := os.Stat(program); err != nil {
			return nil, fmt.Errorf("%w: make soak builds it", err)
		}
	}
	// Short, because the path of a socket has at most 107 bytes (unix(7)).
	dir, err := os.MkdirTemp("", "s-")
	if err != nil {
		return nil, err
	}
	n := &node{
		bin: bin, testbin: o.testbin, dir: dir, root: filepath.Join(dir, "root"), state: filepath.Join(dir, "run"), calls: newCalls(),
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	if n.registry, err = newRegistry(o.testbin); err != nil {
		return nil, err
	}
	files := map[string]string{
		"registries.conf": fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", n.registry.host()),
		"crispd.toml":     "",
	}
	if o.stuck != "" {
		if err := n.forThings(files); err != nil {
			return nil, err
		}
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			return nil, err
		}
	}
	n.conn, err = n.dial(nil)
	if err != nil {
		return nil, err
	}
	n.runtime, n.images = cri.NewRuntimeServiceClient(n.conn), cri.NewImageServiceClient(n.conn)
	return n, nil
}

// forThings prepares the causes of stuck objects: a disk that can be filled, and a handler whose
// network plugin hangs while a file exists.
func (n *node) forThings(files map[string]string) error {
	files["bin/hanging"] = fmt.Sprintf(hangingPlugin, n.hangs())
	files["net.d/10-hanging.conflist"] = `{"cniVersion":"1.0.0","name":"hanging","plugins":[{"type":"hanging"}]}`
	files["crispd.toml"] = fmt.Sprintf("[cni]\nbin_dirs = [%q, %q]\n[handlers.hanging]\ncni_conf_dir = %q\n",
		filepath.Join(n.bin, "cni"), filepath.Join(n.dir, "bin"), filepath.Join(n.dir, "net.d"))
	if err := os.Mkdir(n.root, 0o700); err != nil {
		return err
	}
	return syscall.Mount("tmpfs", n.root, "tmpfs", 0, "size=256m,nr_inodes=20000,mode=711")
}

// hangs returns the path of that file.
func (n *node) hangs() string { return filepath.Join(n.dir, "hangs") }

const hangingPlugin = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
ADD)
	while [ -e %[1]s ]; do sleep 1; done
	echo '{"cniVersion":"1.0.0","ips":[{"address":"10.99.0.2/24"}]}' ;;
esac
`

func (n *node) socket() string { return filepath.Join(n.state, "crisp.sock") }

// dial returns a client. made, if not nil, is called with its connections.
func (n *node) dial(made func(net.Conn)) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+n.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "unix", addr)
			if err == nil && made != nil {
				made(c)
			}
			return c, err
		}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}), // without backoff
		grpc.WithUnaryInterceptor(n.count), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
}

// start starts crispd, and returns when it answers.
func (n *node) start(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(n.dir, "crispd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(n.bin, "crispd"), "--config", filepath.Join(n.dir, "crispd.toml"), "--root", n.root, "--state", n.state)
	cmd.Env = append(os.Environ(), "CONTAINERS_REGISTRIES_CONF="+filepath.Join(n.dir, "registries.conf"))
	cmd.Stdout, cmd.Stderr = log, log
	// Ctrl-C reaches only the soak, which then ends crispd.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // only the end matters
		close(exited)
	}()
	n.mu.Lock()
	n.cmd, n.exited = cmd, exited
	n.mu.Unlock()
	return n.answers(ctx)
}

// answers waits until crispd reports that it and its executor are ready.
func (n *node) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(explained(ctx), patience)
	defer cancel()
	for {
		resp, err := n.runtime.Status(ctx, &cri.StatusRequest{})
		if err == nil && slices.ContainsFunc(resp.Status.Conditions, func(c *cri.RuntimeCondition) bool { return c.Type == cri.RuntimeReady && c.Status }) {
			return nil
		}
		select {
		case <-n.exited:
			return errors.New("crispd has ended")
		case <-ctx.Done():
			return fmt.Errorf("crispd does not get ready: %v, %w", resp.GetStatus(), errors.Join(err, ctx.Err()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// kill kills crispd, its executor or both, and returns when they run again.
func (n *node) kill(ctx context.Context, crispd, executor bool) error {
	d := &down{from: time.Now()}
	n.mu.Lock()
	n.downs = append(n.downs, d)
	if crispd && executor {
		n.both = d.from
	}
	n.mu.Unlock()
	if executor {
		if pid, err := testenv.ExecutorPid(n.state); err == nil { // else it is being started
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				return err
			}
		}
	}
	if crispd {
		if err := n.cmd.Process.Kill(); err != nil {
			return err
		}
		<-n.exited
		if err := n.start(ctx); err != nil {
			return err
		}
	} else if err := n.answers(ctx); err != nil {
		return err
	}
	n.mu.Lock()
	d.to = time.Now()
	n.mu.Unlock()
	return nil
}

// beside reports whether a daemon was killed while a call was under way.
func (n *node) beside(began time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.downs, func(d *down) bool { return d.to.IsZero() || began.Before(d.to.Add(again)) })
}

// cutOff reports whether the output of a container started at born has lost its reader: without a
// service manager nothing keeps the containers' pipes open when both daemons are killed, and a
// writer ends by SIGPIPE.
func (n *node) cutOff(born time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return born.Before(n.both)
}

// end ends crispd and wipes the instance.
func (n *node) end() error {
	var errs []error
	n.conn.Close()
	n.registry.close()
	if n.cmd != nil {
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-n.exited:
		case <-time.After(patience):
			_ = n.cmd.Process.Kill()
			<-n.exited
			errs = append(errs, errors.New("crispd did not end by SIGTERM"))
		}
	}
	for _, name := range []string{"executor.log.1", "executor.log"} {
		if text, err := os.ReadFile(filepath.Join(n.state, name)); err == nil {
			f, err := os.OpenFile(filepath.Join(n.dir, "executor.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			if err == nil {
				_, err = f.Write(text)
				err = errors.Join(err, f.Close())
			}
			errs = append(errs, err)
		}
	}
	out, err := exec.Command(filepath.Join(n.bin, "crispd"), "wipe", "--all", "--config", filepath.Join(n.dir, "crispd.toml"), "--root", n.root, "--state", n.state).CombinedOutput()
	if err != nil {
		errs = append(errs, fmt.Errorf("crispd wipe: %w\n%s", err, out))
	}
	_ = syscall.Unmount(n.root, syscall.MNT_DETACH) // a mount of -stuck
	// A kubelet removes the cgroups that it made, too.
	for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup"} {
		dirs, _ := filepath.Glob(pattern + "/crisp-soak*")
		for _, dir := range dirs {
			if err := os.Remove(dir); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
