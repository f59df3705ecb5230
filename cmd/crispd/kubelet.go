package main

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/crisp-cri/crisp/internal/unixsock"
	"github.com/prometheus/procfs"
)

// kubelets are the kubelets of clusters that are connected to the CRI socket. A node that joins
// a cluster runs crisp before the cluster's network exists: pods that started in the default
// network meanwhile could never reach other nodes.
//
// The kernel reports who is connected; crispd does not search the node for kubelets. So the
// answer is known before the first call, and other instances' kubelets do not count.
type kubelets struct {
	mu   sync.Mutex
	open map[*kubeletConn]string // its process, for messages
}

// watch returns a listener that records kubelets among its clients.
func (k *kubelets) watch(l net.Listener) net.Listener { return &kubeletListener{l, k} }

// awaited returns "" unless a kubelet of a cluster is connected.
func (k *kubelets) awaited() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, process := range k.open {
		return fmt.Sprintf("%s is connected, the kubelet of a cluster, and pods wait for the cluster's network (cni.default_network = true gives them crisp's own)", process)
	}
	return ""
}

type kubeletListener struct {
	net.Listener
	kubelets *kubelets
}

func (l *kubeletListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	pid := peer(conn)
	name, args := commandOf(pid)
	if !ofCluster(name, args) {
		return conn, nil
	}
	c := &kubeletConn{Conn: conn, kubelets: l.kubelets}
	l.kubelets.mu.Lock()
	defer l.kubelets.mu.Unlock()
	if l.kubelets.open == nil {
		l.kubelets.open = make(map[*kubeletConn]string)
	}
	l.kubelets.open[c] = fmt.Sprintf("%s (process %d)", name, pid)
	return c, nil
}

type kubeletConn struct {
	net.Conn
	kubelets *kubelets
}

func (c *kubeletConn) Close() error {
	c.kubelets.mu.Lock()
	delete(c.kubelets.open, c)
	c.kubelets.mu.Unlock()
	return c.Conn.Close()
}

// peer returns the PID of the connected process, or 0: it may be in a PID namespace that we cannot
// see.
func peer(conn net.Conn) int {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	cred, err := unixsock.Peer(u)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}

// commandOf returns a process's name and arguments, none if it does not exist.
func commandOf(pid int) (name string, args []string) {
	if p, err := procfs.NewProc(pid); err == nil {
		name, _ = p.Comm()
		args, _ = p.CmdLine()
	}
	return name, args
}

// ofCluster reports whether a process with that name and those arguments is the kubelet of a
// cluster. A kubelet without an API server runs pods of its node alone (standalone), which no
// cluster will give a network. K3s and MicroK8s run the kubelet in their own process.
func ofCluster(name string, args []string) bool {
	switch name {
	case "kubelet":
		return slices.ContainsFunc(args, func(arg string) bool {
			flag, _, _ := strings.Cut(arg, "=")
			return flag == "--kubeconfig" || flag == "--bootstrap-kubeconfig"
		})
	case "k3s", "k3s-server", "k3s-agent", "kubelite":
		return true
	}
	return false
}
