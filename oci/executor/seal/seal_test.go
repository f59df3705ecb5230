package seal

import (
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A machine short of memory may keep a page of the program busy when it is to be sealed: the
// executor still starts.
func TestSealWaitsForThePages(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	defer f.Close()
	if _, err := f.Write(make([]byte, os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var from int64
	// splice(2) puts the page itself into the pipe, not a copy.
	if n, err := unix.Splice(fd, &from, int(w.Fd()), nil, os.Getpagesize(), 0); err != nil || n == 0 {
		t.Fatalf("splice: %d, %v", n, err)
	}
	w.Close()
	go func() {
		time.Sleep(time.Second)
		io.Copy(io.Discard, r)
	}()
	if err := addSeals(f, baseSeals); err != nil {
		t.Fatal(err)
	}
	if seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&baseSeals != baseSeals {
		t.Errorf("seals are %#x, %v", seals, err)
	}
}
