package api

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// A client may request statistics every few seconds; a directory is still walked only once a
// minute. Removed directories are dropped.
func TestDirectoriesAreMeasuredOnceAMinute(t *testing.T) {
	dir := t.TempDir()
	grow := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 100_000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var u diskUse
		first := u.of(dir)
		begin := time.Now()
		grow("a")
		for time.Since(begin) < measuredEvery {
			if s := u.of(dir); *s.UsedBytes != *first.UsedBytes || *s.InodesUsed != 1 || !s.Time.Time.Equal(begin) {
				t.Fatalf("after %v: %d bytes and %d inodes of %v", time.Since(begin), *s.UsedBytes, *s.InodesUsed, s.Time)
			}
			time.Sleep(10 * time.Second)
		}
		if s := u.of(dir); *s.UsedBytes < *first.UsedBytes+100_000 || *s.InodesUsed != 2 || !s.Time.Time.Equal(begin.Add(measuredEvery)) {
			t.Errorf("a minute later: %d bytes and %d inodes of %v", *s.UsedBytes, *s.InodesUsed, s.Time)
		}
		for i := range 100 {
			gone := filepath.Join(dir, fmt.Sprint(i))
			if err := os.Mkdir(gone, 0o700); err != nil {
				t.Fatal(err)
			}
			u.of(gone)
			if err := os.Remove(gone); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
		}
		if len(u.dirs) > 7 {
			t.Errorf("%d directories are kept, of those that were asked for within a minute", len(u.dirs))
		}
		if u.of(filepath.Join(dir, "gone")) != nil {
			t.Error("a directory that is not there was measured")
		}
	})
}
