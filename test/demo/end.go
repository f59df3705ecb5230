package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// end removes the pod as a user would, ends the daemons, last first, and wipes the instance. It
// continues after a failure.
func (d *demo) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	say("Clean-up: the applied objects are deleted.")
	var errs []error
	if _, err := os.Stat(d.stack()); err == nil && len(d.daemons) == 2 { // otherwise there is no pod, or no daemon to end it
		errs = append(errs, d.crisp(ctx, "delete", "-f", d.stack(), "--ignore-not-found"))
		errs = append(errs, d.crisp(ctx, "get", "pods"))
	}
	for _, p := range slices.Backward(d.daemons) {
		errs = append(errs, p.stop())
	}
	errs = append(errs, d.wipe(ctx))
	return errors.Join(errs...)
}

func (d *demo) wipe(ctx context.Context) error {
	args := append([]string{"wipe", "--all"}, d.instance()...)
	command("crispd %s", strings.Join(args, " "))
	out, err := exec.CommandContext(ctx, filepath.Join(d.bin, "crispd"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("crispd wipe: %w\n%s", err, out)
	}
	return nil
}
