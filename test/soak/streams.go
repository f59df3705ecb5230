package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stream opens a stream to a URL of crispd with either of the protocols.
func stream(ctx context.Context, r *rand.Rand, address string, o remotecommand.StreamOptions) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	var e remotecommand.Executor
	if r.IntN(2) == 0 {
		e, err = remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", u)
	} else {
		e, err = remotecommand.NewWebSocketExecutor(&rest.Config{}, "GET", address)
	}
	if err != nil {
		return err
	}
	return e.StreamWithContext(ctx, o)
}

func (m *mix) execStream(ctx context.Context, r *rand.Rand) {
	c := m.someContainer(r)
	if c == nil {
		return
	}
	ctx = about(ctx, c.ended)
	word := fmt.Sprint("word-", r.Uint32(), "\n")
	began := time.Now()
	resp, err := m.n.runtime.Exec(ctx, &cri.ExecRequest{ContainerId: c.id, Cmd: []string{"/testbin", "echo-stdin"}, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return
	}
	var out bytes.Buffer
	err = stream(ctx, r, resp.Url, remotecommand.StreamOptions{Stdin: strings.NewReader(word), Stdout: &out, Stderr: io.Discard})
	m.n.judge(ctx, "exec stream", began, err)
	if err == nil && out.String() != word && !c.ended() && !m.n.beside(began) {
		m.n.calls.wrongAnswer("an exec stream printed %q, want %q", out.String(), word)
	}
}

// attach reads for a while, or until the container ends.
func (m *mix) attach(ctx context.Context, r *rand.Rand) {
	c := m.someContainer(r)
	if c == nil {
		return
	}
	ctx, cancel := within(about(ctx, c.ended), time.Duration(20+r.IntN(500))*time.Millisecond)
	defer cancel()
	began := time.Now()
	resp, err := m.n.runtime.Attach(ctx, &cri.AttachRequest{ContainerId: c.id, Stdin: c.config.Stdin, Stdout: true, Stderr: !c.config.Tty, Tty: c.config.Tty})
	if err != nil {
		return
	}
	in, typed := io.Pipe()
	defer typed.Close()
	o := remotecommand.StreamOptions{Stdout: io.Discard, Tty: c.config.Tty}
	if c.config.Stdin {
		o.Stdin = in
		go io.WriteString(typed, "hello\n")
	}
	if !c.config.Tty {
		o.Stderr = io.Discard
	}
	m.n.judge(ctx, "attach stream", began, stream(ctx, r, resp.Url, o))
}

// portForward sends a request to a server in a container through a forwarded port.
func (m *mix) portForward(ctx context.Context, r *rand.Rand) {
	c := m.someContainer(r, "serves")
	if c == nil {
		return
	}
	ctx = about(ctx, c.ended)
	began := time.Now()
	resp, err := m.n.runtime.PortForward(ctx, &cri.PortForwardRequest{PodSandboxId: c.pod.id, Port: []int32{8080}})
	if err != nil {
		return
	}
	body, err := forwarded(ctx, resp.Url)
	m.n.judge(ctx, "port-forward stream", began, err)
	if err == nil && body != "here" && !c.ended() {
		m.n.calls.wrongAnswer("a forwarded port answers %q, want %q", body, "here")
	}
}

func forwarded(ctx context.Context, address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	tr, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		return "", err
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	pf, err := portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: tr}, "POST", u), []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- pf.ForwardPorts() }()
	select {
	case err := <-ended:
		return "", fmt.Errorf("forward: %v", err)
	case <-ctx.Done():
		close(stop)
		return "", ctx.Err()
	case <-ready:
	}
	defer func() {
		close(stop)
		<-ended
	}()
	ports, err := pf.GetPorts()
	if err != nil {
		return "", err
	}
	return get(ctx, fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
}

// getHostPort sends a request to a server in a container through its host port.
func (m *mix) getHostPort(ctx context.Context, r *rand.Rand) {
	c := m.someContainer(r, "serves")
	if c == nil || c.pod.hostPort == 0 {
		return
	}
	began := time.Now()
	ctx = about(ctx, c.ended)
	body, err := get(ctx, fmt.Sprintf("127.0.0.1:%d", c.pod.hostPort))
	m.n.judge(ctx, "host port", began, err)
	if err == nil && body != "here" && !c.ended() {
		m.n.calls.wrongAnswer("host port %d answers %q, want %q", c.pod.hostPort, body, "here")
	}
}

// get retries for a while, since a server needs a moment until it listens.
func get(ctx context.Context, address string) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext}}
	var last error
	for range 20 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address, nil)
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err == nil {
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			return strings.TrimSpace(string(body)), err
		}
		last = err
		if !sleep(ctx, 100*time.Millisecond) {
			break
		}
	}
	return "", last
}

// events reads events for a while.
func (m *mix) events(ctx context.Context, r *rand.Rand) {
	ctx, cancel := within(ctx, time.Duration(r.IntN(2000))*time.Millisecond)
	defer cancel()
	began := time.Now()
	s, err := m.n.runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	for err == nil {
		_, err = s.Recv()
		if err == nil && r.IntN(20) == 0 {
			time.Sleep(200 * time.Millisecond) // a slow reader
		}
	}
	m.n.judge(ctx, "GetContainerEvents", began, err)
}
