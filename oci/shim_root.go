package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// ShimProgram is the path, in the directory that MakeShimRoot makes, of the program of a sandbox's
// own container.
const ShimProgram = "/init"

// MakeShimRoot makes the root directory of the container that a sandbox with a shim has, and
// returns its path. It has nothing in it but the program of our inits and places for mounts. Each
// sandbox has its own: shims put files into the roots that they are given. It goes with RunDir.
func (sb *Sandbox) MakeShimRoot() (string, error) {
	program, err := os.ReadFile(sb.rt.o.PodInit)
	if err != nil {
		return "", fmt.Errorf("program of sandbox %s: %w", sb.id, err)
	}
	root := filepath.Join(sb.runDir, "root")
	for _, dir := range []string{"proc", "sys", "dev", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return "", fmt.Errorf("root of sandbox %s: %w", sb.id, err)
		}
	}
	for name, data := range map[string][]byte{ShimProgram: program, "etc/resolv.conf": nil, "etc/hosts": nil, "etc/hostname": nil} {
		file := filepath.Join(root, name)
		if err := os.WriteFile(file, data, 0o755); err != nil {
			return "", fmt.Errorf("root of sandbox %s: %w", sb.id, err)
		}
		if err := os.Chmod(file, 0o755); err != nil { // whatever the umask
			return "", fmt.Errorf("root of sandbox %s: %w", sb.id, err)
		}
	}
	return root, nil
}

// EndShim ends the sandbox's own container and with it the shim, which takes what is left in the
// sandbox with it. It is no error if it has ended, or never was. It may be repeated.
func (sb *Sandbox) EndShim(ctx context.Context) error {
	if sb.Config().Shim == nil {
		return nil
	}
	return sb.endInit(ctx)
}
