package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/test/testenv"
)

// A file system without a journal would show no commit to wait for.
func TestFileSystemHasAJournal(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	testenv.Need(t, "program:mkfs.ext4")
	dir := t.TempDir()
	file, at := filepath.Join(dir, "disk"), filepath.Join(dir, "at")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first leaves nothing in the way of the second
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, file, "64M", at) }()
		for device := ""; device == ""; time.Sleep(10 * time.Millisecond) {
			if len(ended) > 0 {
				t.Fatal(<-ended)
			}
			device = deviceAt(t, at)
			if device == "" {
				continue
			}
			// jbd2 has a directory for each journal that is in use.
			if dirs, err := filepath.Glob("/proc/fs/jbd2/" + filepath.Base(device) + "-*"); err != nil || len(dirs) != 1 {
				t.Errorf("%s has the journals %q, %v", device, dirs, err)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if device := deviceAt(t, at); device != "" {
			t.Errorf("%s is still mounted", device)
		}
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("the file is left: %v", err)
		}
	}
	if err := run(t.Context(), "", "1M", at); err == nil {
		t.Error("it takes no file")
	}
}

// deviceAt returns the device that is mounted at dir; "" = none.
func deviceAt(t *testing.T, dir string) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[1] == dir {
			return f[0]
		}
	}
	return ""
}
