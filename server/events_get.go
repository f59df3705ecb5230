package server

import (
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
)

// GetContainerEvents streams the events of sandboxes and containers, each with
// the statuses of the whole pod, until the caller leaves. A caller that does
// not keep up is cut off with Unavailable: it has to list everything and start
// over.
func (s *Server) GetContainerEvents(_ *cri.GetEventsRequest, stream grpc.ServerStreamingServer[cri.ContainerEventResponse]) error {
	sub := s.events.hub.Subscribe(eventQueue)
	defer sub.Close()
	for {
		select {
		case ev, ok := <-sub.C():
			if !ok {
				return sub.Err()
			}
			if err := stream.Send(ev); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.ctx.Done():
			return fault.Unavailable.Errorf("crispd is stopping")
		}
	}
}
