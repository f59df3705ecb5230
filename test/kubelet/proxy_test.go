package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "k8s.io/cri-api/pkg/apis/runtime/v1" // registers the messages that the proxy decodes
)

// A call is an RPC that passed through a proxy. The proxy's clock has its times.
type call struct {
	Method   string // without the service
	Request  []byte // JSON, by protojson
	Response []byte
	Err      string // "" or the status
	Begin    time.Time
	End      time.Time
}

// A proxy forwards all gRPC messages unchanged, and records the unary calls in wanted.
type proxy struct {
	socket string
	server *grpc.Server
	conn   *grpc.ClientConn
	wanted map[string]bool

	mu    sync.Mutex
	calls []call
	open  map[*frame]string // the methods of requests without a response
}

// startProxy serves the runtime at target on socket.
func startProxy(socket, target string, wanted map[string]bool) (*proxy, error) {
	// The codecs that other packages register do not matter: both ends are forced to use frames.
	conn, err := grpc.NewClient("unix://"+target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(frames{}), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(socket); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	p := &proxy{socket: socket, conn: conn, wanted: wanted, open: map[*frame]string{}}
	p.server = grpc.NewServer(grpc.ForceServerCodec(frames{}), grpc.MaxRecvMsgSize(64<<20), grpc.UnknownServiceHandler(p.pass))
	go func() {
		if err := p.server.Serve(listener); err != nil {
			log.Printf("proxy: %v", err)
		}
	}()
	return p, nil
}

func (p *proxy) stop() {
	p.server.Stop()
	p.conn.Close()
}

// all returns the calls recorded so far.
func (p *proxy) all() []call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]call(nil), p.calls...)
}

// busy reports whether a call of this method is running whose request contains this text.
func (p *proxy) busy(method, has string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for request, of := range p.open {
		if of == method && bytes.Contains(*request, []byte(has)) {
			return true
		}
	}
	return false
}

// pass handles every method. CRI has unary calls and server streams; in both the client sends one
// message.
func (p *proxy) pass(_ any, in grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(in)
	var request frame
	if err := in.RecvMsg(&request); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md.Copy())
	}
	c := call{Method: path.Base(full), Begin: time.Now()}
	p.mu.Lock()
	p.open[&request] = c.Method
	p.mu.Unlock()
	last, err := p.forward(ctx, full, &request, in)
	c.End = time.Now()
	p.mu.Lock()
	delete(p.open, &request)
	p.mu.Unlock()
	if p.wanted[c.Method] {
		c.Request, c.Response = decode(full, true, request), decode(full, false, last)
		if err != nil {
			c.Err = status.Convert(err).Message()
		}
		p.mu.Lock()
		p.calls = append(p.calls, c)
		p.mu.Unlock()
	}
	return err
}

// forward sends the request, forwards all responses, and returns the last one.
func (p *proxy) forward(ctx context.Context, method string, request *frame, in grpc.ServerStream) (last frame, err error) {
	out, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return nil, err
	}
	if err := out.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := out.CloseSend(); err != nil {
		return nil, err
	}
	for {
		var answer frame
		if err := out.RecvMsg(&answer); errors.Is(err, io.EOF) {
			return last, nil
		} else if err != nil {
			return last, err
		}
		last = answer
		if err := in.SendMsg(&answer); err != nil {
			return last, err
		}
	}
}

// decode returns a frame as JSON, with the descriptors of the kubelet's CRI version. It reports
// unknown fields.
func decode(method string, request bool, data frame) []byte {
	fail := func(err error) []byte { return fmt.Appendf(nil, "{%q: %q}", "undecodable", err.Error()) }
	service, name := path.Split(method)
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(path.Base(service) + "." + name))
	if err != nil {
		return fail(err)
	}
	of := d.(protoreflect.MethodDescriptor).Output()
	if request {
		of = d.(protoreflect.MethodDescriptor).Input()
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
	if err != nil {
		return fail(err)
	}
	m := t.New().Interface()
	if err := proto.Unmarshal(data, m); err != nil {
		return fail(err)
	}
	if unknown := unknownIn(m.ProtoReflect()); unknown != "" {
		return fail(fmt.Errorf("%s has a field that CRI of the kubelet has not", unknown))
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return fail(err)
	}
	return text
}

// unknownIn returns the name of the first message in m, or m itself, that has unknown fields.
func unknownIn(m protoreflect.Message) (name string) {
	if len(m.GetUnknown()) > 0 {
		return string(m.Descriptor().FullName())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && f.Message() != nil:
			for i := 0; i < v.List().Len() && name == ""; i++ {
				name = unknownIn(v.List().Get(i).Message())
			}
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				name = unknownIn(v.Message())
				return name == ""
			})
		case !f.IsList() && !f.IsMap() && f.Message() != nil:
			name = unknownIn(v.Message())
		}
		return name == ""
	})
	return name
}

// A frame is a message in wire format; frames is its codec.
type frame []byte

type frames struct{}

func (frames) Name() string { return "proto" }

func (frames) Marshal(v any) ([]byte, error) { return *v.(*frame), nil }

func (frames) Unmarshal(data []byte, v any) error {
	*v.(*frame) = append(frame(nil), data...)
	return nil
}
