package rootfs_test

import (
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/crisp-cri/crisp/test/testenv"
	"golang.org/x/sys/unix"
)

// A host whose SELinux was disabled still has labels on its files, and a kernel without the
// mount option context. Its containers must start.
func TestLabelsWithoutSELinux(t *testing.T) {
	testenv.Need(t, "erofs", "labels", "!selinux")
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	p.Reopen(image.Options{Layers: image.EROFS})
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "x"))
	id := p.Pull(reg.Host + "/app").ID
	files, err := filepath.Glob(filepath.Join(p.Root(), "layers", "*", "fs.erofs"))
	if err != nil || len(files) != 1 {
		t.Fatalf("layers are %v (err %v)", files, err)
	}
	if err := unix.Setxattr(files[0], "security.selinux", []byte("system_u:object_r:container_ro_file_t:s0"), 0); err != nil {
		t.Fatal(err)
	}
	if got := imagetest.ReadFile(t, p.Mount("k", id), "top"); got != "x" {
		t.Errorf("file holds %q", got)
	}
}
