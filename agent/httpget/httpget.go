// Package httpget makes the HTTP requests of probes and lifecycle hooks. The User-Agent
// is the kubelet's, since programs recognize such requests by it.
package httpget

import (
	"cmp"
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

// version is the version of Kubernetes in the User-Agent.
const version = "1.36"

// Request makes the request of an action of container c. host is the pod's address, used
// if the action names no host. purpose is "probe" or "lifecycle", for the User-Agent.
func Request(a *v1.HTTPGetAction, c *v1.Container, host, purpose string) (*http.Request, error) {
	port, err := Port(a.Port, c)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(a.Path)
	if err != nil {
		u = &url.URL{Path: a.Path} // the server gets the path as it is
	}
	u.Scheme = cmp.Or(strings.ToLower(string(a.Scheme)), "http")
	u.Host = net.JoinHostPort(cmp.Or(a.Host, host), strconv.Itoa(port))
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

// UserAgent returns the kubelet's User-Agent for a purpose: "kube-probe/1.36".
func UserAgent(purpose string) string { return "kube-" + purpose + "/" + version }

// Port returns the number of a port, which may be given by the name of a port of c. It fails if
// c has no such port or the number is not from 1 to 65535.
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

// Client returns a client that uses no proxy, since pods are near, does not verify certificates,
// since those of pods are self-signed, closes connections after use, and follows at most 10
// redirects, none of them to another host.
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

// Dialer returns a Dialer whose connections leave TIME_WAIT after a second (SO_LINGER,
// socket(7)): otherwise each of the many probes would occupy a port of the node for a minute.
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
