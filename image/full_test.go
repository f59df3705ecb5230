package image_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"golang.org/x/sys/unix"
)

// Removal makes room, so it must work when no inode or no block is left: otherwise only an
// administrator could help the node.
func TestRemovingWorksOnFullDisk(t *testing.T) {
	for what, options := range map[string]string{"inodes": "size=64m,nr_inodes=600", "blocks": "size=4m"} {
		t.Run(what, func(t *testing.T) {
			reg := imagetest.NewRegistry(t)
			p := imagetest.NewPlace(t, reg)
			p.Close()
			disk := p.Root()
			for _, name := range p.Names(".") {
				if err := os.RemoveAll(filepath.Join(disk, name)); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Mount("tmpfs", disk, "tmpfs", 0, options); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if p.Store != nil {
					p.Close()
				}
				if err := unix.Unmount(disk, 0); err != nil {
					t.Error(err)
				}
				p.Open(image.Options{}) // for the checks at the end of the test
			})
			p.Open(image.Options{})
			reg.Push("app", "latest", imagetest.Build(t, "gzip", "a", "b", "c"))
			ref := reg.Host + "/app"
			for range 2 { // the second time with room again
				img := p.Pull(ref)
				root := p.Mount("k", img.ID)
				p.Mount("other", img.ID)
				fill(t, root)
				p.Reopen(image.Options{})
				if err := p.Store.RootFS().Unmount(t.Context(), "other", true); err != nil {
					t.Errorf("remove a container's files: %v", err)
				}
				p.Swept("")
				fill(t, root)
				if err := p.Store.Remove(t.Context(), ref); err != nil {
					t.Errorf("remove an image: %v", err)
				}
				if err := p.Store.RootFS().Unmount(t.Context(), "k", true); err != nil {
					t.Errorf("remove a container's files: %v", err)
				}
				p.Swept("")
				if n := p.Layers(); n != 0 {
					t.Errorf("%d layers are left", n)
				}
			}
		})
	}
}

// fill uses up all inodes and blocks of the disk of dir.
func fill(t *testing.T, dir string) {
	t.Helper()
	data := make([]byte, 64<<10)
	for i := 0; ; i++ {
		path := filepath.Join(dir, fmt.Sprintf("junk-%d-%d", len(dir), i))
		err := os.WriteFile(path, data, 0o600)
		switch {
		case errors.Is(err, unix.ENOSPC) && len(data) == 0:
			return
		case errors.Is(err, unix.ENOSPC):
			data = nil // a file of the remaining space exists, or not even that
		case err != nil:
			t.Fatal(err)
		case i > 100_000:
			t.Fatal("the disk does not fill up")
		}
		if len(data) == 0 {
			var st unix.Statfs_t
			if err := unix.Statfs(dir, &st); err == nil && st.Bavail == 0 && st.Ffree > 1000 {
				return // no test can use up all inodes here
			}
		}
	}
}

// A layer whose removal failed does not keep its image from being pulled again, and its
// space still counts.
func TestLayerThatCouldNotBeRemoved(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "a", "b"))
	reg.Push("other", "latest", imagetest.Build(t, "gzip", "c"))
	ref := reg.Host + "/app"
	p.Pull(ref)
	p.Pull(reg.Host + "/other")
	before := p.Store.FsInfo()
	staging := filepath.Join(p.Root(), "staging")
	p.Swept("")
	if err := errors.Join(os.Remove(staging), os.WriteFile(staging, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := p.Store.Remove(t.Context(), ref); err == nil {
		t.Error("removing into a file was no error")
	}
	if got := p.Store.FsInfo(); got != before {
		t.Errorf("the store has %+v, want %+v still", got, before)
	}
	if err := errors.Join(os.Remove(staging), os.Mkdir(staging, 0o700)); err != nil {
		t.Fatal(err)
	}
	p.Pull(ref)
	if err := os.RemoveAll(filepath.Join(staging, "x")); err != nil {
		t.Fatal(err)
	}
	if err := p.Store.Remove(t.Context(), ref); err != nil {
		t.Error(err)
	}
	p.Swept("")
	if n := p.Layers(); n != 1 {
		t.Errorf("%d layers, want that of the other image", n)
	}

	// The leftovers are removed with the next image.
	p.Pull(ref)
	if err := errors.Join(os.Remove(staging), os.WriteFile(staging, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := p.Store.Remove(t.Context(), ref); err == nil {
		t.Error("removing into a file was no error")
	}
	if err := errors.Join(os.Remove(staging), os.Mkdir(staging, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := p.Store.Remove(t.Context(), ref); !errors.Is(err, fault.NotFound) {
		t.Errorf("the image is there still: %v", err)
	}
	p.Swept("")
	if n := p.Layers(); n != 1 {
		t.Errorf("%d layers, want that of the other image", n)
	}
}

// The leftovers of a crash in a layer's place are replaced by the layer.
func TestHalfRemovedLayerIsReplaced(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "a"))
	img := p.Pull(reg.Host + "/app")
	names := p.Names("layers")
	if err := p.Store.Remove(t.Context(), img.ID); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(p.Root(), "layers", names[0], "fs", "half"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.Pull(reg.Host + "/app")
	if _, err := os.Stat(filepath.Join(p.Root(), "layers", names[0], "fs", "half")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the layer has leftovers: %v", err)
	}
}

// A mount that fails for lack of space leaves no mount point.
func TestMountFailsOnFullDisk(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "a"))
	img := p.Pull(reg.Host + "/app")
	state := filepath.Join(p.Dir, "state")
	rw := filepath.Join(p.Root(), "rw")
	if err := unix.Mount("tmpfs", rw, "tmpfs", 0, "nr_inodes=7"); err != nil { // too few for overlayfs's work directory
		t.Fatal(err)
	}
	_, err := p.Store.RootFS().Mount(t.Context(), "k", img.ID, rootfs.MountOptions{})
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v, want %v", err, unix.ENOSPC)
	}
	if left, err := os.ReadDir(state); err != nil || len(left) != 0 {
		t.Errorf("left %v, err %v", left, err)
	}
	if err := unix.Unmount(rw, 0); err != nil {
		t.Fatal(err)
	}
	p.Mount("k", img.ID)
}
