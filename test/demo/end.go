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

// end removes the pod as a user would, ends the daemons, last first, and wipes
// the instance. Whatever fails, the rest is done all the same.
func (d *demo) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	say("The end: without its manifest, the pod goes.")
	var errs []error
	manifests, err := filepath.Glob(filepath.Join(d.manifests(), "*.yaml"))
	errs = append(errs, err)
	for _, m := range manifests {
		command("rm %s", m)
		errs = append(errs, os.Remove(m))
	}
	if len(d.daemons) == 2 { // else there is no agent to end pods
		errs = append(errs, d.waitFor(ctx, "the pod to go", func() bool {
			out, err := d.output(ctx, "get", "pods", "-A", "-o", "name")
			return err == nil && strings.TrimSpace(out) == ""
		}))
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
