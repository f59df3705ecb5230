package image_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/crisp-cri/crisp/test/treetest"
)

// A container may nest directories without limit, with mkdir and chdir again and again. The
// tree must not use up crispd's descriptors, and must be removed with the container.
func TestContainersDeepTreeIsMeasuredAndRemoved(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "x"))
	img := p.Pull(reg.Host + "/app")
	const deep = 5000
	treetest.Deep(t, p.Mount("k", img.ID), "d", deep)
	fewDescriptors(t, 200)
	p.Reopen(image.Options{}) // everything is measured after a start
	for wait := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, inodes, err := p.Store.RootFS().Usage("k")
		if err != nil {
			t.Fatal(err)
		}
		if inodes == 2*deep+1 {
			break
		}
		if time.Now().After(wait) {
			t.Fatalf("%d inodes are said to be used, want %d", inodes, 2*deep+1)
		}
	}
	if err := p.Store.RootFS().Unmount(t.Context(), "k", true); err != nil {
		t.Fatal(err)
	}
	p.Swept("")
	if left, err := os.ReadDir(filepath.Join(p.Root(), "rw")); err != nil || len(left) != 0 {
		t.Errorf("left %v, err %v", left, err)
	}
}

// fewDescriptors limits this process to that many more descriptors.
func fewDescriptors(t *testing.T, more int) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	few := old
	few.Cur = uint64(treetest.Descriptors(t) + more)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) })
}
