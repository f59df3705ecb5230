package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

const maxBody = 10 << 10

// A Prober runs probes: commands in containers, and connections to pods' addresses.
type Prober struct{ Runtime Runtime }

type Runtime interface {
	// ProbeExec runs a command in the container of c with this ID, for at most timeout. An
	// error means that the command could not be run.
	ProbeExec(ctx context.Context, c *v1.Container, id string, command []string, timeout time.Duration) (Answer, error)
}

func (p Prober) Ask(ctx context.Context, pod *v1.Pod, s *v1.PodStatus, c *v1.Container, id string, spec *v1.Probe) (Answer, error) {
	timeout := time.Duration(spec.TimeoutSeconds) * time.Second
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch {
	case spec.Exec != nil:
		return p.Runtime.ProbeExec(ctx, c, id, spec.Exec.Command, timeout)
	case spec.HTTPGet != nil:
		req, err := HTTPRequest(spec.HTTPGet, c, s.PodIP, "probe")
		if err != nil {
			return Answer{}, err
		}
		return get(req.WithContext(limited))
	case spec.TCPSocket != nil:
		port, err := Port(spec.TCPSocket.Port, c)
		if err != nil {
			return Answer{}, err
		}
		return dial(limited, net.JoinHostPort(cmp.Or(spec.TCPSocket.Host, s.PodIP), strconv.Itoa(port)))
	case spec.GRPC != nil:
		addr := net.JoinHostPort(s.PodIP, strconv.Itoa(int(spec.GRPC.Port)))
		return check(limited, addr, ptr.Deref(spec.GRPC.Service, ""), timeout)
	}
	return Answer{}, errors.New("probe names no action")
}

// get makes an HTTP request. Any status from 200 to 399 is a success. The text of a failure omits
// the body, which may be secret.
func get(req *http.Request) (Answer, error) {
	resp, err := HTTPClient().Do(req)
	if err != nil {
		return Answer{Text: err.Error()}, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch {
	case err != nil:
		return Answer{Text: err.Error()}, nil
	case resp.StatusCode < http.StatusOK, resp.StatusCode >= http.StatusBadRequest:
		return Answer{Text: fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode)}, nil
	case resp.StatusCode >= http.StatusMultipleChoices:
		return Answer{OK: true, Warning: true, Text: "Probe terminated redirects, Response body: " + string(body)}, nil
	}
	return Answer{OK: true, Text: string(body)}, nil
}

func dial(ctx context.Context, addr string) (Answer, error) {
	conn, err := dialer().DialContext(ctx, "tcp", addr)
	if err != nil {
		return Answer{Text: err.Error()}, nil
	}
	conn.Close()
	return Answer{OK: true}, nil
}

// check queries the health of a gRPC service (grpc.health.v1); "" means the whole server.
func check(ctx context.Context, addr, service string, timeout time.Duration) (Answer, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent(userAgent("probe")),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer().DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
	if err != nil {
		switch status.Code(err) {
		case codes.Unimplemented:
			return Answer{Text: fmt.Sprintf("this server does not implement the grpc health protocol (grpc.health.v1.Health): %v", status.Convert(err).Message())}, nil
		case codes.DeadlineExceeded:
			return Answer{Text: fmt.Sprintf("timeout: health rpc did not complete within %v", timeout)}, nil
		}
		return Answer{Text: fmt.Sprintf("health rpc probe failed: %v", err)}, nil
	}
	if resp.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return Answer{Text: fmt.Sprintf("service unhealthy (responded with %q)", resp.GetStatus())}, nil
	}
	return Answer{OK: true, Text: "service healthy"}, nil
}

// version is the version of Kubernetes in the User-Agent, which is the kubelet's: programs recognize
// the requests of probes and hooks by it.
const version = "1.36"

// HTTPRequest makes the request of an action of container c. host is the pod's address, used
// if the action names no host. purpose is "probe" or "lifecycle", for the User-Agent.
func HTTPRequest(a *v1.HTTPGetAction, c *v1.Container, host, purpose string) (*http.Request, error) {
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
		req.Header.Set("User-Agent", userAgent(purpose))
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

func userAgent(purpose string) string { return "kube-" + purpose + "/" + version }

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

// HTTPClient returns a client that uses no proxy, since pods are near, does not verify certificates,
// since those of pods are self-signed, closes connections after use, and follows at most 10
// redirects, none of them to another host.
func HTTPClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives:  true,
			DisableCompression: true,
			DialContext:        dialer().DialContext,
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

// dialer returns a Dialer whose connections leave TIME_WAIT after a second (SO_LINGER,
// socket(7)): otherwise each of the many probes would occupy a port of the node for a minute.
func dialer() *net.Dialer {
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
