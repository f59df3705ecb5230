package main

import (
	"errors"
	"log/slog"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/kernel"
)

// noUserNS returns why this node cannot give pods user namespaces; nil if it can. crispd calls
// it once: the scheduler relies on the answer, which must not change back and forth.
func noUserNS(host kernel.Features, images *image.Store, log *slog.Logger) error {
	err := errors.New("the kernel or its administrator allows none")
	if host.UserNS {
		err = images.RootFS().CheckIDMap()
	}
	if err != nil {
		log.Info("user namespaces are not available", "err", err)
	}
	return err
}
