package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/crisp-cri/crisp/agent/httpget"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// maxBody is the number of bytes read of an HTTP response's body.
const maxBody = 10 << 10

// A Prober runs probes: commands in containers, and connections to pods' addresses.
type Prober struct{ Runtime Runtime }

// A Runtime runs commands in containers.
type Runtime interface {
	// ProbeExec runs a command in the container of c with this ID, for at most timeout. An
	// error means that the command could not be run.
	ProbeExec(ctx context.Context, c *v1.Container, id string, command []string, timeout time.Duration) (Answer, error)
}

// Ask implements Asker.
func (p Prober) Ask(ctx context.Context, pod *v1.Pod, s *v1.PodStatus, c *v1.Container, id string, spec *v1.Probe) (Answer, error) {
	timeout := time.Duration(spec.TimeoutSeconds) * time.Second
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch {
	case spec.Exec != nil:
		return p.Runtime.ProbeExec(ctx, c, id, spec.Exec.Command, timeout)
	case spec.HTTPGet != nil:
		req, err := httpget.Request(spec.HTTPGet, c, s.PodIP, "probe")
		if err != nil {
			return Answer{}, err
		}
		return get(req.WithContext(limited))
	case spec.TCPSocket != nil:
		port, err := httpget.Port(spec.TCPSocket.Port, c)
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
	resp, err := httpget.Client().Do(req)
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
	conn, err := httpget.Dialer().DialContext(ctx, "tcp", addr)
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
		grpc.WithUserAgent(httpget.UserAgent("probe")),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return httpget.Dialer().DialContext(ctx, "tcp", addr)
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
