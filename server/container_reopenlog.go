package server

import (
	"context"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ReopenContainerLog continues in a new log file, which exists when the call returns. CRI does
// not define the call for a container that is not running; here it is an error, and "once it
// returns error, new container log file MUST NOT be created."
func (s *Server) ReopenContainerLog(ctx context.Context, req *cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error) {
	c, err := s.runtime.Container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	s.startups.outputs.LoadOrStore(c.ID(), time.Time{}) // it will no longer begin with its first output
	if err := c.ReopenLog(ctx); err != nil {
		return nil, err
	}
	return &cri.ReopenContainerLogResponse{}, nil
}
