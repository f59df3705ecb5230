package server

import "github.com/crisp-cri/crisp/internal/pulls"

// Pulls implements pullapi.Lister: it returns the pulls under way.
func (i imageService) Pulls() []pulls.Pull { return i.images.Pulls() }

// Closing ends the streams of pullapi when the server closes.
func (i imageService) Closing() <-chan struct{} { return i.server.ctx.Done() }
