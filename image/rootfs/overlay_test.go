package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/internal/userns"
	"github.com/crisp-cri/crisp/test/testenv"
	"golang.org/x/sys/unix"
)

// Both ways to mount must have the same result: kernels before 6.5 have only the old one,
// whose options share one page, so that many layers need short names.
func TestOverlayMountsOnOldAndNewKernels(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	ways := map[string]func(*overlay, string) error{"old": (*overlay).mountOld}
	if appendsLayers() {
		ways["new"] = (*overlay).mountNew
	}
	for name, mount := range ways {
		for _, layers := range []int{1, 3, 150} {
			t.Run(fmt.Sprintf("%s/%d", name, layers), func(t *testing.T) {
				dir := t.TempDir()
				o := &overlay{upper: filepath.Join(dir, "upper"), work: filepath.Join(dir, "work")}
				for _, d := range []string{o.upper, o.work, filepath.Join(dir, "root")} {
					if err := os.Mkdir(d, 0o755); err != nil {
						t.Fatal(err)
					}
				}
				for i := range layers { // the highest first; all have the file "same"
					layer := filepath.Join(dir, fmt.Sprintf("layer-with-a-long-name-%064d", i))
					if err := os.Mkdir(layer, 0o755); err != nil {
						t.Fatal(err)
					}
					for _, f := range []string{"same", fmt.Sprint("of-", i)} {
						if err := os.WriteFile(filepath.Join(layer, f), []byte(fmt.Sprint(i)), 0o644); err != nil {
							t.Fatal(err)
						}
					}
					o.lower = append(o.lower, layer)
				}
				root := filepath.Join(dir, "root")
				if err := mount(o, root); err != nil {
					t.Fatal(err)
				}
				defer unix.Unmount(root, unix.MNT_DETACH)
				if got, err := os.ReadFile(filepath.Join(root, "same")); err != nil || string(got) != "0" {
					t.Errorf("the highest layer's file reads %q (%v)", got, err)
				}
				if _, err := os.Stat(filepath.Join(root, fmt.Sprint("of-", layers-1))); err != nil {
					t.Errorf("the lowest layer: %v", err)
				}
				if err := os.WriteFile(filepath.Join(root, "new"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(filepath.Join(o.upper, "new")); err != nil {
					t.Errorf("a write does not reach the upper directory: %v", err)
				}
			})
		}
	}
}

// Linux 6.5 and early 6.6 have the new mount API without lowerdir+: judged by the version
// alone, no container could be made there.
func TestOverlayOptionIsTried(t *testing.T) {
	testenv.NeedRoot(t, "it opens a file system")
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(uts.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if major < 6 || major == 6 && minor < 7 {
		t.Skip("needs Linux 6.7: before that all options are taken, or none is a layer's")
	}
	for option, want := range map[string]bool{"lowerdir+": true, "upperdir": true, "lowerdir-of-a-later-linux": false} {
		if got := knowsPath(option); got != want {
			t.Errorf("option %q is known: %v, want %v", option, got, want)
		}
	}
}

// ID-mapped layers are mounted in a mount namespace of their own, with both ways.
func TestMappedOverlayOnOldAndNewKernels(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	testenv.Need(t, "idmap")
	ids := userns.Range{Host: 200000, Length: 1000}
	ns, err := userns.Open(userns.Map{UID: ids, GID: ids})
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	is := appendsLayers
	defer func() { appendsLayers = is }()
	for _, appends := range []bool{false, is()} {
		for _, layers := range []int{0, 1, 150} {
			for _, readOnly := range []bool{false, true} {
				t.Run(fmt.Sprint(appends, layers, readOnly), func(t *testing.T) {
					appendsLayers = func() bool { return appends }
					dir := t.TempDir()
					o := &overlay{empty: filepath.Join(dir, "empty"), userns: ns}
					root := filepath.Join(dir, "root")
					dirs := []string{o.empty, root}
					if !readOnly {
						o.upper, o.work = filepath.Join(dir, "upper"), filepath.Join(dir, "work")
						dirs = append(dirs, o.upper, o.work)
					}
					for i := range layers {
						o.lower = append(o.lower, filepath.Join(dir, fmt.Sprint("layer", i)))
					}
					for _, d := range append(dirs, o.lower...) {
						if err := os.Mkdir(d, 0o755); err != nil {
							t.Fatal(err)
						}
					}
					for i, d := range o.lower {
						if err := os.WriteFile(filepath.Join(d, fmt.Sprint("of-", i)), nil, 0o644); err != nil {
							t.Fatal(err)
						}
					}
					if err := o.mount(root); err != nil {
						t.Fatal(err)
					}
					defer unix.Unmount(root, unix.MNT_DETACH)
					for i := range layers {
						var st unix.Stat_t
						if err := unix.Stat(filepath.Join(root, fmt.Sprint("of-", i)), &st); err != nil || st.Uid != 200000 || st.Gid != 200000 {
							t.Fatalf("a file of layer %d belongs to %d:%d, %v", i, st.Uid, st.Gid, err)
						}
					}
					if err := os.WriteFile(filepath.Join(root, "new"), nil, 0o644); (err != nil) != readOnly {
						t.Errorf("write: %v", err)
					}
				})
			}
		}
	}
}
