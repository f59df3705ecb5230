package volume

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestHostPath(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path string
		kind v1.HostPathType
		ok   bool
	}{
		{dir, v1.HostPathUnset, true},
		{dir + "/none", v1.HostPathUnset, true},
		{dir, v1.HostPathDirectory, true},
		{file, v1.HostPathDirectory, false},
		{dir + "/none", v1.HostPathDirectory, false},
		{dir + "/made/too", v1.HostPathDirectoryOrCreate, true},
		{file, v1.HostPathFile, true},
		{dir, v1.HostPathFile, false},
		{dir + "/newfile", v1.HostPathFileOrCreate, true},
		{file, v1.HostPathSocket, false},
		{"/dev/null", v1.HostPathCharDev, true},
		{"/dev/null", v1.HostPathBlockDev, false},
	} {
		err := checkHostPath(&v1.HostPathVolumeSource{Path: test.path, Type: &test.kind})
		if (err == nil) != test.ok {
			t.Errorf("%s as %q: %v", test.path, test.kind, err)
		}
	}
	for _, made := range []string{"made/too", "newfile"} {
		if _, err := os.Stat(filepath.Join(dir, made)); err != nil {
			t.Error(err)
		}
	}
}
