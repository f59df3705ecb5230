// Package loaderapi is the service crisp.v1.Loader: it loads an image archive into a running
// crispd, for images from no registry, saves an image as an archive, and tags images. CRI has no
// calls for that.
//
//	rpc Load(stream google.protobuf.BytesValue) returns (google.protobuf.ListValue);
//	rpc Save(google.protobuf.StringValue) returns (stream google.protobuf.BytesValue);
//	rpc Tag(google.protobuf.ListValue) returns (google.protobuf.StringValue);
//
// The messages of Load are the archive, split anywhere; the response lists the names (strings)
// of the images, or the IDs of those without a name. Save takes any name of an image; the first
// message of the response is the image's ID in the archive, which differs if a layer could not
// be reproduced exactly, and all others are the archive. Tag takes any name of an image and the
// new tag; the response is the full tag. The service is too small for a code generator: its
// description is written by hand. The client's side is package loaderclient.
package loaderapi

import (
	"bufio"
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Method, SaveMethod and TagMethod are the full names of the methods.
const (
	Method     = "/crisp.v1.Loader/Load"
	SaveMethod = "/crisp.v1.Loader/Save"
	TagMethod  = "/crisp.v1.Loader/Tag"
)

// Chunk is how much of an archive one message carries, in bytes: enough to make the messages'
// overhead negligible, and below any message limit.
const Chunk = 1 << 20

// A Loader stores the images of an archive and returns their names.
type Loader interface {
	Load(ctx context.Context, archive io.Reader) (names []string, err error)
	// Save writes an image as an archive to the result of begin, which it calls once, with the
	// image's ID in the archive.
	Save(ctx context.Context, image string, begin func(id string) (io.Writer, error)) error
	// Tag adds a tag to an image and returns the full tag.
	Tag(ctx context.Context, image, tag string) (string, error)
}

// desc describes the service to gRPC, as generated code would.
var desc = grpc.ServiceDesc{
	ServiceName: "crisp.v1.Loader",
	HandlerType: (*Loader)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "Tag", Handler: serveTag}},
	Streams: []grpc.StreamDesc{
		{StreamName: "Load", Handler: serve, ClientStreams: true},
		{StreamName: "Save", Handler: serveSave, ServerStreams: true},
	},
	Metadata: "crisp/v1/loader",
}

// Register registers l as the service on g.
func Register(g grpc.ServiceRegistrar, l Loader) { g.RegisterService(&desc, l) }

// serveTag is the server's side of Tag, in the form of generated code.
func serveTag(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
	in := new(structpb.ListValue)
	if err := decode(in); err != nil {
		return nil, err
	}
	handle := func(ctx context.Context, req any) (any, error) {
		words := req.(*structpb.ListValue).GetValues()
		var names [2]string
		for i := range min(len(words), len(names)) {
			names[i] = words[i].GetStringValue()
		}
		tag, err := srv.(Loader).Tag(ctx, names[0], names[1])
		return wrapperspb.String(tag), err
	}
	if intercept == nil {
		return handle(ctx, in)
	}
	return intercept(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: TagMethod}, handle)
}

// serve is the server's side of Load. It passes the messages to the Loader as one reader, so
// that the archive is never completely in memory.
func serve(srv any, stream grpc.ServerStream) error {
	names, err := srv.(Loader).Load(stream.Context(), &reader{stream: stream})
	if err != nil {
		return err
	}
	list := new(structpb.ListValue)
	for _, name := range names {
		list.Values = append(list.Values, structpb.NewStringValue(name))
	}
	return stream.SendMsg(list)
}

// reader reads the archive from the stream.
type reader struct {
	stream grpc.ServerStream
	rest   []byte
}

func (r *reader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		var m wrapperspb.BytesValue
		if err := r.stream.RecvMsg(&m); err != nil {
			return 0, err // io.EOF at the end of the archive
		}
		r.rest = m.Value
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// serveSave is the server's side of Save. It sends the archive while the Loader writes it, no
// faster than the client reads.
func serveSave(srv any, stream grpc.ServerStream) error {
	var image wrapperspb.StringValue
	if err := stream.RecvMsg(&image); err != nil {
		return err
	}
	buf := bufio.NewWriterSize(writer{stream}, Chunk)
	err := srv.(Loader).Save(stream.Context(), image.Value, func(id string) (io.Writer, error) {
		return buf, stream.SendMsg(wrapperspb.Bytes([]byte(id)))
	})
	if err != nil {
		return err
	}
	return buf.Flush()
}

// writer sends the bytes written to it.
type writer struct{ stream grpc.ServerStream }

func (w writer) Write(p []byte) (int, error) {
	if err := w.stream.SendMsg(wrapperspb.Bytes(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
