package rootless

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/regular"
	"github.com/crisp-cri/crisp/internal/undo"
)

const (
	slirpProgram = "slirp4netns"
	slirpDevice  = "tap0"
	slirpGuest   = "10.0.2.100" // the namespace's own address
	slirpDNS     = "10.0.2.3"   // answers as the machine's name servers do
)

func slirpSocket(state string) string { return filepath.Join(state, "slirp4netns.sock") }

// Lacks returns why this user cannot have a network namespace with a way out; nil if it can.
func Lacks() error {
	if _, err := exec.LookPath(slirpProgram); err != nil {
		return err
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// startSlirp starts slirp4netns for the network namespace of the keeper, and waits until it has set
// that up.
func startSlirp(state string, keeper int) (pid int, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	program, err := exec.LookPath(slirpProgram)
	if err != nil {
		return 0, err
	}
	f, err := os.OpenFile(filepath.Join(state, slirpProgram), os.O_WRONLY|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := os.Remove(slirpSocket(state)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	ready, done, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer ready.Close()
	defer done.Close()
	// It reports each request. It has both ends of the pipe that this goes to, which is not read: what
	// finds no room is lost, and it meets neither a full disk nor a closed pipe.
	var said [2]int
	if err := unix.Pipe2(said[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return 0, os.NewSyscallError("pipe2", err)
	}
	defer unix.Close(said[0])
	args := []string{
		slirpProgram, "--configure", "--mtu=65520", "--disable-host-loopback", "--enable-sandbox", "--enable-seccomp",
		"--api-socket=" + slirpSocket(state), "--ready-fd=3",
	}
	if hasIPv6() { // else programs would try it in vain
		args = append(args, "--enable-ipv6")
	}
	pid, err = syscall.ForkExec(program, append(args, strconv.Itoa(keeper), slirpDevice), &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Sys: &syscall.SysProcAttr{Setsid: true},
		Files: []uintptr{null.Fd(), uintptr(said[1]), uintptr(said[1]), done.Fd(), uintptr(said[0])},
	})
	unix.Close(said[1])
	done.Close()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", program, err)
	}
	steps.Add(slirpProgram, func() error {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		_, err := unix.Wait4(pid, nil, 0, nil)
		return err
	})
	_ = ready.SetReadDeadline(time.Now().Add(10 * time.Second)) // which a pipe has
	if n, _ := ready.Read(make([]byte, 1)); n != 1 {
		text := make([]byte, 2000)
		n, _ := unix.Read(said[0], text)
		return 0, fmt.Errorf("%s did not set up the network: %s", program, strings.TrimSpace(string(text[:max(n, 0)])))
	}
	return pid, errors.Join(follow(keeper, pid), record(f, pid))
}

// hasIPv6 reports whether the machine has an IPv6 address that is not only for itself or a link.
func hasIPv6() bool {
	list, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(list, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.To4() == nil && n.IP.IsGlobalUnicast()
	})
}

// Network sets up what the network namespace of Enter needs besides slirp4netns. The channel is closed
// when that has ended: only a new crispd, which begins outside, can start another one. It is nil where
// there is no such namespace.
func Network(state string) (ended <-chan struct{}, err error) {
	pid, err := strconv.Atoi(os.Getenv(networkEnv))
	if err != nil || !Entered() {
		return nil, nil
	}
	// slirp4netns sends to the addresses of pods, too: the device answers for them.
	if err := kernel.SetSysctl("net/ipv4/conf/"+slirpDevice+"/proxy_arp", "1"); err != nil {
		return nil, err
	}
	// It announces the way out over IPv6, which a router of pods would not heed.
	if err := kernel.SetSysctl("net/ipv6/conf/"+slirpDevice+"/accept_ra", "2"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := nameServers(state); err != nil {
		return nil, fmt.Errorf("name servers: %w", err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", slirpProgram, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} // it stays open
		for err := error(unix.EINTR); err == unix.EINTR; {
			_, err = unix.Poll(poll, -1)
		}
	}()
	return done, nil
}

// nameServers replaces /etc/resolv.conf in the mount namespace, if it names the machine's loopback
// device only, which the network namespace does not have.
func nameServers(state string) error {
	const path = "/etc/resolv.conf"
	text, err := regular.ReadFile(path, regular.MaxConfig)
	if err != nil {
		return nil // there is nothing to mount it on
	}
	own := ""
	for line := range strings.Lines(string(text)) {
		word := strings.Fields(line)
		if len(word) < 2 || word[0] != "nameserver" {
			own += line
		} else if ip := net.ParseIP(word[1]); ip == nil || !ip.IsLoopback() {
			return nil
		}
	}
	file := filepath.Join(state, "resolv.conf")
	if err := os.WriteFile(file, []byte(own+"nameserver "+slirpDNS+"\n"), 0o644); err != nil {
		return err
	}
	return os.NewSyscallError("mount", unix.Mount(file, path, "", unix.MS_BIND, ""))
}
