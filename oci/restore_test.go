package oci_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// The files of a checkpoint stay until its processes run, also over restarts of the daemon,
// and are removed with a container that was never started.
func TestRestoreDir(t *testing.T) {
	inBubble(t, func(b *bed) {
		there := func(dir string) bool {
			_, err := os.Stat(dir)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				b.Error(err)
			}
			return err == nil
		}
		_, drop, err := b.r.RestoreDir(oci.NewID())
		b.ok(err)
		b.ok(drop())
		if left, err := filepath.Glob(filepath.Join(b.m.Root, "containers", "*")); err != nil || len(left) > 0 {
			b.Errorf("after drop there is %v (err %v)", left, err)
		}

		lost, _, err := b.r.RestoreDir(oci.NewID())
		b.ok(err)
		id := oci.NewID()
		dir, _, err := b.r.RestoreDir(id)
		b.ok(err)
		images := filepath.Join(dir, "checkpoint")
		b.ok(os.Mkdir(images, 0o700))
		b.ok(os.WriteFile(filepath.Join(images, "inventory.img"), nil, 0o600))
		_, err = b.r.Create(b.Context(), oci.ContainerConfig{ID: id, SandboxID: b.sb.ID(), Spec: ocitest.Spec("sleep", "for-ever"), Restore: dir})
		b.ok(err)
		b.reopen()
		if there(filepath.Dir(lost)) {
			b.Error("the directory of a restore that a dead daemon had begun is still there")
		}

		c, err := b.r.Container(id)
		b.ok(err)
		b.ok(c.Start(b.Context()))
		synctest.Wait()
		b.state(c, oci.Running)
		if there(dir) {
			b.Error("the checkpoint is still there after its restore")
		}
		b.ok(b.r.Shutdown(b.Context()))
		b.empty()
	})
}
