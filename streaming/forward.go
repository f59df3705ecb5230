package streaming

import (
	"net/http"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// PortForward returns the URL at which req will be served, once.
func (s *Server) PortForward(req *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	path, err := s.tokens.add("portforward", func(w http.ResponseWriter, r *http.Request) {
		serve := func(w http.ResponseWriter, r *http.Request) {
			a := &adapter{ctx: r.Context(), runtime: s.runtime, forwards: forwards{log: s.log}}
			portforward.ServePortForward(w, r, a, req.PodSandboxId, "", &portforward.V4Options{Ports: req.Port},
				s.idle(), creationTimeout, portforward.SupportedProtocols)
		}
		if wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
			tunnel(w, r, serve)
			return
		}
		serve(w, r)
	})
	if err != nil {
		return nil, err
	}
	return &cri.PortForwardResponse{Url: s.base + path}, nil
}
