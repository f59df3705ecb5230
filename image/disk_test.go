package image_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/crisp-cri/crisp/test/testdisk"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// A page that could not be written back is lost, and the kernel reports that once. If an
// unrelated sync got the report, the image must not be taken for complete.
func TestLostWritesFailThePull(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	p.Close()
	if err := os.RemoveAll(p.Root()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(p.Root(), 0o700); err != nil {
		t.Fatal(err)
	}
	disk := testdisk.Mount(t, p.Root())
	t.Cleanup(func() {
		if p.Store != nil {
			p.Close()
		}
		if err := unix.Unmount(p.Root(), 0); err != nil {
			t.Error(err)
		}
		p.Open(image.Options{}) // for the checks at the end of the test
	})
	p.Open(image.Options{})
	data := make([]byte, 16<<20)
	rand.NewChaCha8([32]byte{}).Read(data)
	img := imagetest.BuildOf(t, "plain", v1.Image{}, imagetest.TarOf(t, map[string]string{"big": string(data)}), imagetest.TarOf(t, map[string]string{"last": "x"}))
	reg.Push("app", "v1", img)
	big := filepath.Join(p.Root(), "staging", "*", "*.json")
	last := digest.FromBytes(img.Blobs[1]).String()
	if err := errors.Join(disk.Sync(), disk.Break()); err != nil {
		t.Fatal(err)
	}
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, last) {
			return false
		}
		for r.Context().Err() == nil { // until the big layer is unpacked
			if done, _ := filepath.Glob(big); len(done) == 1 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if err := disk.Lose(); err != nil {
			t.Error(err)
		}
		return false
	})
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
	if !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v, want one of the disk", err)
	}
	if n := p.Layers() + len(p.Store.List()); n != 0 {
		t.Errorf("%d images and layers are left", n)
	}
	reg.Intercept(nil)
	root := p.Mount("k", p.Pull(reg.Host+"/app:v1").ID)
	if err := errors.Join(disk.Sync(), os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(root, "big")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file has other content (err %v)", err)
	}
	if err := p.Store.RootFS().Unmount(t.Context(), "k", true); err != nil {
		t.Error(err)
	}
}
