package shim

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// fifoIn makes a FIFO with a reader and a writer, which it returns.
func fifoIn(t *testing.T, dir, name string) (path string, writer *os.File) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	return path, writer
}

// What is put into a Keeper stays in its FIFO as long as a program lives that has inherited it, and is
// lost when it is taken out.
func TestKeeper(t *testing.T) {
	dir := t.TempDir()
	k, err := NewKeeper()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = k.inherited()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid, number := cmd.Process.Pid, k.Number
	end := func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	defer end()
	path, writer := fifoIn(t, dir, "stdout")
	if err := k.Put("a", path, ""); err != nil {
		t.Fatal(err)
	}
	if err := k.Put("b", "", filepath.Join(dir, "nosuch")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	k.Close()
	writer.WriteString("last words")
	writer.Close()
	text := func() string {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		buf := make([]byte, 4)
		n, _ := f.Read(buf)
		return string(buf[:n])
	}
	if got := text(); got != "last" {
		t.Errorf("the FIFO has %q", got)
	}
	for what, of := range map[string]struct {
		pid    int
		number uint64
	}{"another number": {pid, number + 1}, "no number": {pid, 0}, "no PID": {0, number}, "a program without": {os.Getpid(), number}} {
		if k, err := OpenKeeper(of.pid, of.number); err == nil {
			k.Close()
			t.Errorf("%s: it is opened", what)
		}
	}
	if k, err = OpenKeeper(pid, number); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(k.Put("c"), k.Put("a")); err != nil {
		t.Error(err)
	}
	renew := func(keep string, want ...string) {
		var names []string
		err := k.Renew(func(name string) []string {
			if names = append(names, name); name == keep {
				return []string{path}
			}
			return nil
		})
		if diff := cmp.Diff(want, names); diff != "" || err != nil {
			t.Errorf("it had (-want +got): %v\n%s", err, diff)
		}
	}
	renew("a", "a", "c")
	if got := text(); got != " wor" {
		t.Errorf("the FIFO has %q", got)
	}
	renew("", "a", "a")
	renew("a")
	if got := text(); got != "" {
		t.Errorf("the FIFO still has %q", got)
	}
	k.Close()
	end()
	if _, err := OpenKeeper(pid, number); !errors.Is(err, unix.ESRCH) {
		t.Errorf("of a program that has ended: %v", err)
	}
}

// A full Keeper takes nothing more, which is an error; emptied, it takes all again.
func TestKeeperIsBounded(t *testing.T) {
	path, writer := fifoIn(t, t.TempDir(), "stdout")
	defer writer.Close()
	k, err := NewKeeper()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for range 2 {
		n := 0
		for err = nil; err == nil && n < maxKept; n++ {
			err = k.Put(fmt.Sprint(n), path)
		}
		if !errors.Is(err, unix.EAGAIN) || n < 64 {
			t.Errorf("after %d: %v", n, err)
		}
		if err := k.Renew(func(string) []string { return []string{path} }); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("renewed: %v", err)
		}
		had := 0
		if err := k.Renew(func(string) []string { had++; return nil }); err != nil || had != n-1 {
			t.Errorf("it had %d names, want %d (%v)", had, n-1, err)
		}
	}
}
