package main

import (
	"context"
	"io"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	terminalGroup = "One restricted pod with a terminal, host network"
	usersGroup    = "One restricted pod in a user namespace, each one's own network"
)

// terminals measures pods whose container has a terminal, with a shell in between.
func (b *bench) terminals(ctx context.Context) {
	b.rounded(ctx, terminalGroup, func(e *endpoint) *pod {
		p := b.newPod(e, "host", restricted)
		p.container.Tty, p.container.Stdin = true, true
		return p
	}, func(e *endpoint, p *pod, t timing) error { return e.shell(ctx, p.id, t) })
}

// userNamespaces measures pods in a user namespace, as the kubelet asks for with hostUsers: false.
func (b *bench) userNamespaces(ctx context.Context) {
	b.rounded(ctx, usersGroup, func(e *endpoint) *pod {
		p := b.newPod(e, "default", restricted)
		mapping := []*cri.IDMapping{{HostId: 1 << 20, Length: 1 << 16}}
		ns := p.config.Linux.SecurityContext.NamespaceOptions // the container has the same
		ns.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: mapping, Gids: mapping}
		return p
	}, func(e *endpoint, p *pod, t timing) error { return e.timedExec(ctx, p, t) })
}

// A typist sees what a shell prints, types exit at its first byte, and notes when that came.
type typist struct {
	begun time.Time
	first time.Duration
	once  sync.Once
	seen  chan struct{}
	typed bool
}

func (t *typist) Write(p []byte) (int, error) {
	t.once.Do(func() { t.first = time.Since(t.begun); close(t.seen) })
	return len(p), nil
}

func (t *typist) Read(p []byte) (int, error) {
	<-t.seen
	if t.typed {
		return 0, io.EOF
	}
	t.typed = true
	return copy(p, "exit\n"), nil
}

// oneSize is a terminal that does not change.
type oneSize struct{ asked bool }

func (s *oneSize) Next() *remotecommand.TerminalSize {
	if s.asked {
		return nil
	}
	s.asked = true
	return &remotecommand.TerminalSize{Width: 80, Height: 24}
}

// shell runs a shell with a terminal, as kubectl exec -it does, and leaves it at its first byte.
func (e *endpoint) shell(ctx context.Context, container string, t timing) error {
	see := &typist{begun: time.Now(), seen: make(chan struct{})}
	err := t.call(ctx, "exec -it, to its end", func(ctx context.Context) error {
		res, err := e.runtime.Exec(ctx, &cri.ExecRequest{ContainerId: container, Cmd: []string{"sh"}, Tty: true, Stdin: true, Stdout: true})
		if err != nil {
			return err
		}
		at, err := url.Parse(res.Url)
		if err != nil {
			return err
		}
		stream, err := remotecommand.NewSPDYExecutor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, "POST", at)
		if err != nil {
			return err
		}
		return stream.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: see, Stdout: see, Tty: true, TerminalSizeQueue: &oneSize{}})
	})
	if err == nil && t != nil {
		t("exec -it, first byte", see.first)
	}
	return err
}
