// Package pullclient follows the pulls of a running crispd, see pullapi.
package pullclient

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/crisp-cri/crisp/internal/pullapi"
	"github.com/crisp-cri/crisp/internal/pulls"
)

// Watch calls report with each answer, until the stream or ctx ends or report returns an error.
func Watch(ctx context.Context, cc grpc.ClientConnInterface, r pullapi.Request, report func([]pulls.Pull) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{StreamName: "Watch", ServerStreams: true}, pullapi.Method)
	if err != nil {
		return err
	}
	req, err := structpb.NewStruct(map[string]any{"image": r.Image, "pod": r.Pod, "interval": r.Interval.Seconds(), "once": r.Once})
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req); err != nil && err != io.EOF { // RecvMsg then returns the reason
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		var answer structpb.Struct
		if err := stream.RecvMsg(&answer); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		list, err := decode(&answer)
		if err == nil {
			err = report(list)
		}
		if err != nil {
			return err
		}
	}
}

func decode(answer *structpb.Struct) ([]pulls.Pull, error) {
	text, err := answer.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var decoded struct{ Pulls []pulls.Pull }
	if err := json.Unmarshal(text, &decoded); err != nil {
		return nil, fmt.Errorf("progress of pulls: %w", err)
	}
	return decoded.Pulls, nil
}
