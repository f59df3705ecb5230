package runtime

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// A process that writes to a bundle while that is removed does not keep it.
func TestBundleIsRemovedUnderAWriter(t *testing.T) {
	for range 20 {
		dir := filepath.Join(t.TempDir(), "bundle")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		ended, began := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for i := range 500 {
				_ = os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600) // it may be gone
				if i == 0 {
					close(began)
				}
			}
		}()
		<-began
		if err := removeBundle(dir); err != nil {
			t.Error(err)
		}
		<-ended
		if _, err := os.Lstat(dir); err == nil {
			t.Error("the bundle is still there")
		}
	}
}
