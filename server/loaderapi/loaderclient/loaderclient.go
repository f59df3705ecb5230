// Package loaderclient loads, saves and tags images of a running crispd, see loaderapi.
package loaderclient

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/crisp-cri/crisp/server/loaderapi"
)

// Load sends the OCI or docker archive (tar, plain or gzip) from r over cc and returns the names
// of the loaded images.
func Load(ctx context.Context, cc grpc.ClientConnInterface, r io.Reader) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when reading r fails
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{StreamName: "Load", ClientStreams: true}, loaderapi.Method)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, loaderapi.Chunk)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			// Send returns io.EOF when the server has ended the stream; RecvMsg returns
			// the reason.
			if sendErr := stream.SendMsg(wrapperspb.Bytes(buf[:n])); errors.Is(sendErr, io.EOF) {
				break
			} else if sendErr != nil {
				return nil, sendErr
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read image archive: %w", err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	var list structpb.ListValue
	if err := stream.RecvMsg(&list); err != nil {
		return nil, err
	}
	var names []string
	for _, v := range list.Values {
		names = append(names, v.GetStringValue())
	}
	return names, nil
}

// Tag adds a tag to an image and returns the full tag.
func Tag(ctx context.Context, cc grpc.ClientConnInterface, image, tag string) (string, error) {
	in, err := structpb.NewList([]any{image, tag})
	if err != nil {
		return "", err
	}
	var out wrapperspb.StringValue
	err = cc.Invoke(ctx, loaderapi.TagMethod, in, &out)
	return out.Value, err
}

// Save writes the archive of an image to w and returns the image's ID in it. After an error,
// part of the archive may have been written.
func Save(ctx context.Context, cc grpc.ClientConnInterface, image string, w io.Writer) (id string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when w fails
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{StreamName: "Save", ServerStreams: true}, loaderapi.SaveMethod)
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
