package volume

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// A claim's group is changed to a pod's while another pod may write to the claim. No link of the
// other pod can change the group of the node's files.
func TestFSGroupStaysInVolume(t *testing.T) {
	testenv.NeedRoot(t, "it changes groups")
	top := t.TempDir()
	volume, outside := filepath.Join(top, "volume"), filepath.Join(top, "outside")
	for _, dir := range []string{volume, filepath.Join(volume, "dir"), outside} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{filepath.Join(volume, "dir", "file"), filepath.Join(outside, "file")} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(volume, "link")); err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{}
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(1234))}

	done := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(volume, "dir"), unix.AT_FDCWD, filepath.Join(volume, "link"), unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer swaps.Wait()
	defer close(done)
	for range 2000 {
		if err := own(volume, pod, false); err != nil {
			t.Fatal(err)
		}
		for path, mode := range map[string]fs.FileMode{outside: fs.ModeDir | 0o700, filepath.Join(outside, "file"): 0o600} {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if gid := info.Sys().(*syscall.Stat_t).Gid; gid != uint32(os.Getgid()) || info.Mode() != mode {
				t.Fatalf("%s has group %d and mode %v by now, and is not in the volume", path, gid, info.Mode())
			}
		}
	}
}
