package image

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Both ways to mount must do the same: kernels before 6.5 have only the old one,
// whose options share one page, so that many layers must be named shortly.
func TestOverlayMountsOnOldAndNewKernels(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts")
	}
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
				for i := range layers { // the highest first, and all have "same"
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
					t.Errorf("what is written goes elsewhere: %v", err)
				}
			})
		}
	}
}
