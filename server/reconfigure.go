package server

// Reconfigure takes over from o the options that may change while the server runs: Handlers,
// SpecHost, CDISpecDirs, HooksDirs, RejectMountSources, RestoreFromImages and the idle timeout
// of Streaming. They apply to objects created from then on. It ignores the rest of o.
func (s *Server) Reconfigure(o Options) {
	next := s.o
	next.SpecHost, next.Handlers = o.SpecHost, o.Handlers
	next.CDISpecDirs, next.HooksDirs, next.RejectMountSources = o.CDISpecDirs, o.HooksDirs, o.RejectMountSources
	next.RestoreFromImages = o.RestoreFromImages
	next.Handlers = allHandlers(next)
	s.current.Store(&next)
	if s.streaming != nil {
		s.streaming.SetIdleTimeout(o.Streaming.IdleTimeout)
	}
}
