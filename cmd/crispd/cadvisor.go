package main

import (
	"log/slog"

	"google.golang.org/grpc"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/server"
)

// serveCAdvisor serves the kubelet's cAdvisor until stop is called. Only root may ask: the
// answers include the containers' environment.
func serveCAdvisor(c *config.Config, f *files, s *server.Server, log *slog.Logger) (stop func(), err error) {
	if c.CAdvisorSocket == config.None {
		return func() {}, nil
	}
	l, err := f.listenForRoot(c.CAdvisorSocket)
	if err != nil {
		return nil, err
	}
	g := grpc.NewServer(server.AuxServerOptions(s)...)
	server.RegisterCAdvisor(g, s)
	go func() {
		if err := g.Serve(l); err != nil {
			log.Error("cAdvisor is no longer served", "socket", c.CAdvisorSocket, "err", err)
		}
	}()
	return g.Stop, nil
}
