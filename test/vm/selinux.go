package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// policyModule defines containers for Debian's SELinux policy.
//
//go:embed selinux/crisp-test.cil
var policyModule string

// labelRoot adds the module to a root disk's policy and labels the files. It needs no SELinux on
// this machine: the policy is a file, and labels are extended attributes.
func labelRoot(ctx context.Context, root string) error {
	const module = "crisp-test.cil"
	path := filepath.Join(root, "root", module)
	if err := os.WriteFile(path, []byte(policyModule), 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", "-ec", `
		mount -t proc proc "$0/proc"
		chroot "$0" semodule -N -i "/root/$1"
		chroot "$0" setfiles -F -e /proc -e /sys /etc/selinux/default/contexts/files/file_contexts /`, root, module)
	contained(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("label the root disk: %w\n%s", err, tail(string(out), 10))
	}
	return nil
}

// enforce makes SELinux enforce. The node starts in permissive mode, because the files of the
// second disk are not labelled yet.
func enforce(g *guest) error {
	if _, err := g.output("chcon", "-R", "-t", "bin_t", g.payload); err != nil {
		return err
	}
	if _, err := g.output("setenforce", "1"); err != nil {
		return err
	}
	mode, err := g.output("getenforce")
	if err == nil && mode != "Enforcing" {
		err = fmt.Errorf("SELinux is %s", mode)
	}
	return err
}
