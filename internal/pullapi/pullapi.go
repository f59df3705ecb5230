// Package pullapi is the service crisp.v1.Pulls: it reports the progress of a running crispd's
// pulls.
//
// It has one method, a server stream beside CRI, modelled on Kubernetes' drafts for CRI itself
// (KEP-3542: progress over time, as bytes and total; KEP-5334: as a stream that a client follows
// for a pod):
//
//	rpc Watch(google.protobuf.Struct) returns (stream google.protobuf.Struct);
//
// The request may have "image" and "pod" (namespace/name), to select the pulls of that image or
// for that pod; "interval", the seconds between two answers (default 1, at least 0.1); and
// "once": true for a single answer. Each answer has "pulls", a list of pulls.Pull in JSON; the
// first comes at once. The stream ends when its client leaves.
//
// The service is too small for a code generator: its description is written by hand. The client's
// side is package pullclient; it must expect a runtime without the service (Unimplemented).
package pullapi

import (
	"encoding/json"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/crisp-cri/crisp/internal/pulls"
)

// Method is the full name of the one method.
const Method = "/crisp.v1.Pulls/Watch"

const (
	usualInterval = time.Second
	leastInterval = 100 * time.Millisecond
)

// A Request selects the pulls to report.
type Request struct {
	Image    string        // pulls of this image; "" = of any
	Pod      string        // pulls for this pod, namespace/name; "" = for any
	Interval time.Duration // between answers; 0 = a second
	Once     bool          // one answer
}

// A Lister knows the pulls under way.
type Lister interface {
	Pulls() []pulls.Pull
	Closing() <-chan struct{} // closed when streams must end
}

// desc describes the service to gRPC, as generated code would.
var desc = grpc.ServiceDesc{
	ServiceName: "crisp.v1.Pulls",
	HandlerType: (*Lister)(nil),
	Streams:     []grpc.StreamDesc{{StreamName: "Watch", Handler: serve, ServerStreams: true}},
	Metadata:    "crisp/v1/pulls",
}

// Register registers l as the service on g.
func Register(g grpc.ServiceRegistrar, l Lister) { g.RegisterService(&desc, l) }

// serve serves Watch.
func serve(srv any, stream grpc.ServerStream) error {
	var req structpb.Struct
	if err := stream.RecvMsg(&req); err != nil {
		return err
	}
	r := Request{
		Image: req.Fields["image"].GetStringValue(), Pod: req.Fields["pod"].GetStringValue(),
		Once: req.Fields["once"].GetBoolValue(), Interval: usualInterval,
	}
	if s := req.Fields["interval"].GetNumberValue(); s > 0 {
		r.Interval = max(time.Duration(min(s, math.MaxInt32)*float64(time.Second)), leastInterval)
	}
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	for {
		answer, err := encode(r.of(srv.(Lister).Pulls()))
		if err != nil {
			return err
		}
		if err := stream.SendMsg(answer); err != nil || r.Once {
			return err
		}
		select {
		case <-tick.C:
		case <-srv.(Lister).Closing():
			return nil
		case <-stream.Context().Done():
			return nil // its client has heard enough
		}
	}
}

// of returns the pulls that the client has selected.
func (r Request) of(all []pulls.Pull) []pulls.Pull {
	list := []pulls.Pull{}
	for _, p := range all {
		if r.Image != "" && !p.Same(r.Image) {
			continue
		}
		if _, ok := pulls.Of([]pulls.Pull{p}, r.Pod); r.Pod != "" && !ok {
			continue
		}
		list = append(list, p)
	}
	return list
}

// encode writes the pulls to a message.
func encode(list []pulls.Pull) (*structpb.Struct, error) {
	text, err := json.Marshal(map[string]any{"pulls": list})
	if err != nil {
		return nil, err
	}
	answer := new(structpb.Struct)
	return answer, answer.UnmarshalJSON(text)
}
