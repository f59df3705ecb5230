package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A CRIU that does not work on this kernel is reported. Only root can test it.
func TestCheckTriesCRIU(t *testing.T) {
	for _, test := range []struct {
		exit string
		ok   bool
		says string
	}{{"0", true, "program "}, {"1", false, "works on this kernel"}} {
		dir := t.TempDir()
		t.Setenv("PATH", dir+":/bin:/usr/bin")
		if err := os.WriteFile(filepath.Join(dir, "criu"), []byte("#!/bin/sh\nexit "+test.exit+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() != 0 {
			test.ok, test.says = true, "program "+dir
		}
		if f := checkpoints(); f.ok != test.ok || !strings.Contains(f.what, test.says) {
			t.Errorf("criu check exits with %s: %+v", test.exit, f)
		}
	}
}
