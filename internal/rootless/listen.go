package rootless

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// outside are the sockets that this process got from outside, by the address that they were asked for.
// They stay open: an address may be served again.
var outside = takeSockets()

// takeSockets reads socketsEnv, "7=127.0.0.1:0 8=127.0.0.1:9090". No child inherits them.
func takeSockets() map[string]*os.File {
	all := map[string]*os.File{}
	for _, word := range strings.Fields(os.Getenv(socketsEnv)) {
		number, address, _ := strings.Cut(word, "=")
		if fd, err := strconv.Atoi(number); err == nil {
			unix.CloseOnExec(fd)
			all[address] = os.NewFile(uintptr(fd), address)
		}
	}
	os.Unsetenv(socketsEnv)
	return all
}

// listenOutside listens at addresses, for the program that this process becomes; it returns socketsEnv.
func listenOutside(addresses []string) (string, error) {
	env := socketsEnv + "="
	for _, address := range addresses {
		if address == "" || strings.HasPrefix(address, "unix:") {
			continue
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			return "", err
		}
		f, err := l.(*net.TCPListener).File() // stays open
		if err != nil {
			return "", err
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
			return "", os.NewSyscallError("fcntl", err)
		}
		env += fmt.Sprintf("%d=%s ", f.Fd(), address)
	}
	return env, nil
}

// Listen is net.Listen for TCP. A program that was told the address outside listens both there, where
// its user is, and in the network namespace, where pods and the user's agent are.
func Listen(address string) (net.Listener, error) {
	f := outside[address]
	if f == nil {
		return net.Listen("tcp", address)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	inside, err := net.Listen("tcp", l.Addr().String())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	b := &both{Listener: l, inside: inside, accepted: make(chan accepted), closed: make(chan struct{})}
	for _, one := range []net.Listener{l, inside} {
		go b.accept(one)
	}
	return b, nil
}

// both is a listener at one address in two network namespaces.
type both struct {
	net.Listener // outside
	inside       net.Listener
	accepted     chan accepted
	close        sync.Once
	closed       chan struct{}
}

type accepted struct {
	conn net.Conn
	err  error
}

func (b *both) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		select {
		case b.accepted <- accepted{conn, err}:
		case <-b.closed:
			if err == nil {
				conn.Close()
			}
			return
		}
	}
}

func (b *both) Accept() (net.Conn, error) {
	select {
	case a := <-b.accepted:
		return a.conn, a.err
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

func (b *both) Close() (err error) {
	b.close.Do(func() {
		close(b.closed)
		err = cmp.Or(b.Listener.Close(), b.inside.Close())
	})
	return err
}
