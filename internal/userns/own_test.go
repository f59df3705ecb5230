package userns

import (
	"os"
	"path/filepath"
	"testing"
)

// The IDs count from 0 on, in whatever order their ranges are; the machine's first namespace is none of
// ours.
func TestOwn(t *testing.T) {
	for text, want := range map[string]uint32{
		"         0          0 4294967295\n": 0,
		"":                                   0,
		"0 1234 1\n":                         1,
		"1 100000 65536\n0 1234 1\n":         65537,
		"0 1234 1\n2 100000 65536\n":         1,
		"5 100000 65536\n":                   0,
		"0 0 4294967294\n":                   4294967294,
		"0 1 4294967295\n4294967295 1 4294967295\n":   4294967295,
		"0 200000 65536\n65536 300000 10\nnonsense\n": 65546,
	} {
		dir := t.TempDir()
		for _, file := range []string{"uid_map", "gid_map"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m := own(dir)
		if first := text == "         0          0 4294967295\n"; (m == nil) != first {
			t.Errorf("%q: got %v", text, m)
			continue
		}
		if m != nil && (m.UID.Length != want || m.GID.Length != want || m.UID.Host != 0) {
			t.Errorf("%q: got %+v, want %d", text, m, want)
		}
	}
	if m := own(t.TempDir()); m != nil {
		t.Errorf("without user namespaces: got %+v", m)
	}
}
