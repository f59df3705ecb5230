// Package httpget makes the HTTP requests that pods ask for, in probes and in the
// hooks of their containers' lives. Programs tell them from their users' by the
// User-Agent, so it is the kubelet's.
package httpget

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// version is that of the Kubernetes whose behaviour this is.
const version = "1.36"

// Request makes the request of an action on the container c. host is the pod's
// address, for an action that names none. purpose is "probe" or "lifecycle".
func Request(a *v1.HTTPGetAction, c *v1.Container, host, purpose string) (*http.Request, error) {
	port, err := Port(a.Port, c)
	if err != nil {
		return nil, err
	}
	if a.Host != "" {
		host = a.Host
	}
	u, err := url.Parse(a.Path)
	if err != nil {
		u = &url.URL{Path: a.Path} // whatever it is, it is sent
	}
	u.Scheme = strings.ToLower(string(a.Scheme))
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	u.Host = net.JoinHostPort(host, strconv.Itoa(port))
	req, err := http.NewRequest(http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range a.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header.Set("User-Agent", UserAgent(purpose))
	}
	if accept, ok := req.Header["Accept"]; !ok {
		req.Header.Set("Accept", "*/*")
	} else if accept[0] == "" {
		req.Header.Del("Accept")
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
	}
	return req, nil
}

// UserAgent is what we call ourselves.
func UserAgent(purpose string) string { return "kube-" + purpose + "/" + version }

// Port resolves a port that may be the name of one of the container's.
func Port(p intstr.IntOrString, c *v1.Container) (int, error) {
	n := p.IntValue()
	if p.Type == intstr.String {
		for _, named := range c.Ports {
			if named.Name == p.StrVal {
				n = int(named.ContainerPort)
			}
		}
	}
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("container %s has no port %s", c.Name, p.String())
	}
	return n, nil
}

// Client returns a client for one request after the other: no proxy, since pods
// are near, no verification of certificates, since nobody has signed theirs, no
// kept connections, and no redirect to another host.
func Client() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives:  true,
			DisableCompression: true,
			DialContext:        Dialer().DialContext,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			if len(via) >= 10 {
				return fmt.Errorf("stopped after 10 redirects")
			}
			return nil
		},
	}
}

// Dialer returns one whose connections leave nothing behind: probes are many, and
// each would hold a port of the node for a minute (TIME_WAIT).
func Dialer() *net.Dialer {
	return &net.Dialer{
		KeepAlive: -1,
		Control: func(_, _ string, conn syscall.RawConn) error {
			var failed error
			err := conn.Control(func(fd uintptr) {
				failed = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 1})
			})
			if err != nil {
				return err
			}
			return failed
		},
	}
}
