package kernel

import (
	"path/filepath"
	"testing"
)

// The nearest mount counts, not the first whose name is a beginning of the path.
func TestMountOn(t *testing.T) {
	for path, want := range map[string]string{"/proc": "/proc", "/proc/self/nothing": "/proc", "/procession": "/"} {
		on, err := MountOn(path)
		if err != nil || on == nil || on.Mountpoint != want {
			t.Errorf("%s is on %+v (%v), want %s", path, on, err, want)
		}
	}
	if on, err := MountOn(filepath.Join(t.TempDir(), "x")); err != nil || on == nil {
		t.Errorf("a file is on no mount (%v)", err)
	}
}
