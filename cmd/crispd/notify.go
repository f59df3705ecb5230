package main

import (
	"fmt"

	"github.com/crisp-cri/crisp/internal/sdnotify"
)

// notifyReloading tells the manager that a reload begins; READY=1 tells its end.
func notifyReloading() { sdnotify.Notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", monotonic())) }
