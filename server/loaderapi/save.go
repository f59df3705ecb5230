package loaderapi

import (
	"bufio"
	"context"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Save writes the archive of an image to w and returns the image's ID in it. After an error,
// part of the archive may have been written.
func Save(ctx context.Context, cc grpc.ClientConnInterface, image string, w io.Writer) (id string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when w fails
	stream, err := cc.NewStream(ctx, &desc.Streams[1], SaveMethod)
	if err != nil {
		return "", err
	}
	if err := stream.SendMsg(wrapperspb.String(image)); err != nil && err != io.EOF { // RecvMsg returns the reason
		return "", err
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	var m wrapperspb.BytesValue
	if err := stream.RecvMsg(&m); err != nil {
		return "", err
	}
	id = string(m.Value)
	for {
		if err := stream.RecvMsg(&m); err == io.EOF {
			return id, nil
		} else if err != nil {
			return "", err
		}
		if _, err := w.Write(m.Value); err != nil {
			return "", fmt.Errorf("write image archive: %w", err)
		}
	}
}

// serveSave is the server's side of Save. It sends the archive while the Loader writes it, no
// faster than the client reads.
func serveSave(srv any, stream grpc.ServerStream) error {
	var image wrapperspb.StringValue
	if err := stream.RecvMsg(&image); err != nil {
		return err
	}
	buf := bufio.NewWriterSize(writer{stream}, chunk)
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
