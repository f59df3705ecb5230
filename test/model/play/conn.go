package play

import (
	"context"
	"io"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A Conn is a connection to a server in this process, for tests in package synctest's time: it has
// no goroutines of its own and no buffers, so that only calls overlap which the test makes overlap.
// Codes and interceptors are the server's.
type Conn struct {
	unary  grpc.UnaryServerInterceptor
	stream grpc.StreamServerInterceptor

	methods map[string]grpc.MethodHandler
	streams map[string]grpc.StreamHandler
	impls   map[string]any

	gone chan struct{}
	cut  func()
	dead func() bool

	mu   sync.Mutex // guards the beginning of calls, and cut
	work sync.WaitGroup
}

// NewConn returns a connection to the services that are registered with it. While dead is true, no
// answer comes; the code that sets it calls Cut.
func NewConn(unary grpc.UnaryServerInterceptor, stream grpc.StreamServerInterceptor, dead func() bool) *Conn {
	c := &Conn{
		unary: unary, stream: stream, methods: make(map[string]grpc.MethodHandler), streams: make(map[string]grpc.StreamHandler),
		impls: make(map[string]any), gone: make(chan struct{}), dead: dead,
	}
	c.cut = sync.OnceFunc(func() { close(c.gone) })
	return c
}

// RegisterService implements grpc.ServiceRegistrar.
func (c *Conn) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, m := range desc.Methods {
		c.methods["/"+desc.ServiceName+"/"+m.MethodName] = m.Handler
	}
	for _, s := range desc.Streams {
		c.streams["/"+desc.ServiceName+"/"+s.StreamName] = s.Handler
	}
	c.impls[desc.ServiceName] = impl
}

// Cut ends the connection: calls under way get no answer, and none begins.
func (c *Conn) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut()
}

// Wait waits, after Cut, until no handler runs.
func (c *Conn) Wait() { c.work.Wait() }

// run runs f, which Wait waits for, unless the connection was cut.
func (c *Conn) run(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.gone:
		return false
	default:
		c.work.Go(f)
		return true
	}
}

var errCut = status.Error(codes.Unavailable, "connection lost")

// begin returns the context of a handler, which ends with the caller's and with the connection.
func (c *Conn) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	begun := c.run(func() {
		select {
		case <-c.gone:
			cancel()
		case <-ctx.Done():
		}
	})
	if !begun {
		cancel()
	}
	return ctx, cancel
}

func (c *Conn) impl(method string) any {
	return c.impls[strings.Split(method, "/")[1]]
}

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	handle, ok := c.methods[method]
	if !ok {
		return status.Errorf(codes.Unimplemented, "no method %s", method)
	}
	inner, cancel := c.begin(ctx)
	type result struct {
		resp any
		err  error
	}
	done := make(chan result, 1)
	begun := c.run(func() {
		defer cancel()
		decode := func(req any) error {
			proto.Merge(req.(proto.Message), args.(proto.Message))
			return nil
		}
		resp, err := handle(c.impl(method), inner, decode, c.unary)
		done <- result{resp, err}
	})
	if !begun {
		cancel()
		return errCut
	}
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-c.gone:
		return errCut
	case r := <-done:
		if c.dead() {
			<-c.gone
			return errCut
		}
		if r.err == nil {
			proto.Merge(reply.(proto.Message), r.resp.(proto.Message))
		}
		return r.err
	}
}

// NewStream implements grpc.ClientConnInterface, for server streams.
func (c *Conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	handle, ok := c.streams[method]
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "no stream %s", method)
	}
	inner, cancel := c.begin(ctx)
	p := &pipe{ctx: inner, to: make(chan proto.Message), request: make(chan proto.Message, 1), over: make(chan struct{})}
	begun := c.run(func() {
		defer cancel()
		p.err = c.stream(c.impl(method), serverEnd{p}, &grpc.StreamServerInfo{FullMethod: method, IsServerStream: true}, handle)
		close(p.over)
	})
	if !begun {
		cancel()
		return nil, errCut
	}
	return clientEnd{p}, nil
}

// A pipe is a server stream.
type pipe struct {
	ctx     context.Context
	request chan proto.Message
	to      chan proto.Message
	over    chan struct{}
	err     error // written before over is closed
}

type serverEnd struct{ *pipe }

func (serverEnd) SetHeader(metadata.MD) error  { return nil }
func (serverEnd) SendHeader(metadata.MD) error { return nil }
func (serverEnd) SetTrailer(metadata.MD)       {}

func (s serverEnd) Context() context.Context { return s.ctx }

func (s serverEnd) SendMsg(m any) error {
	select {
	case s.to <- proto.Clone(m.(proto.Message)):
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s serverEnd) RecvMsg(m any) error {
	select {
	case r := <-s.request:
		proto.Merge(m.(proto.Message), r)
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

type clientEnd struct{ *pipe }

func (clientEnd) Header() (metadata.MD, error) { return nil, nil }
func (clientEnd) Trailer() metadata.MD         { return nil }
func (clientEnd) CloseSend() error             { return nil }

func (c clientEnd) Context() context.Context { return c.ctx }

func (c clientEnd) SendMsg(m any) error {
	c.request <- proto.Clone(m.(proto.Message))
	return nil
}

func (c clientEnd) RecvMsg(m any) error {
	select {
	case got := <-c.to:
		proto.Merge(m.(proto.Message), got)
		return nil
	case <-c.over:
		if c.err == nil {
			return io.EOF
		}
		return c.err
	}
}
