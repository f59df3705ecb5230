package image_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/filetrace"
	"github.com/crisp-cri/crisp/test/imagetest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// Each system call on a file of the store fails once: the first, the second, and so on until there
// are no more. Whatever fails, the call of the store returns an error or has done its work, its
// repetition succeeds, and nothing is left behind.
//
// A normal run alternates between the errors. CRISP_NTH=full tries each error with each call.
func TestNthCallFails(t *testing.T) {
	imagetest.NeedRoot(t)
	reg := imagetest.NewRegistry(t)
	img := imagetest.BuildOf(t, "gzip", v1.Image{},
		imagetest.TarOf(t, map[string]string{"bin/": "", "bin/sh": strings.Repeat("program", 3000)}),
		imagetest.TarOf(t, map[string]string{"etc/": "", "etc/conf": "two"}))
	reg.Push("app", "v1", img)
	ref := reg.Host + "/app:v1"
	want := contents(t, img)
	dir := t.TempDir()
	records, err := openRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := openBelow(t, dir, settingsOf(t, reg), records)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		_ = unix.Unmount(filepath.Join(dir, "state"), unix.MNT_DETACH)
	})
	pull := func() error {
		_, err := s.Pull(t.Context(), ref, registry.Caller{})
		return err
	}
	pulled := func() error {
		got, err := s.Get(ref)
		if err != nil {
			return err
		}
		return whole(dir, got, want)
	}
	mount := func() error {
		_, err := s.RootFS().Mount(t.Context(), "k", img.ID(), rootfs.MountOptions{})
		return err
	}
	mounted := func() error {
		data, err := os.ReadFile(filepath.Join(dir, "state", "k", "root", "etc", "conf"))
		if err != nil || string(data) != "two" {
			return fmt.Errorf("in the root is %q: %w", data, err)
		}
		return nil
	}
	nothing := func() error { return nil }
	// swept waits for removals in the background.
	swept := func() error {
		for range 3000 {
			if left, err := os.ReadDir(filepath.Join(dir, "store", "staging")); err != nil || len(left) == 0 {
				return err
			}
			time.Sleep(time.Millisecond)
		}
		return errors.New("staging is not swept")
	}
	unmount := func() error { return s.RootFS().Unmount(t.Context(), "k", true) }
	remove := func() error {
		err := s.Remove(t.Context(), ref)
		if errors.Is(err, fault.NotFound) {
			return nil // removed by the first try
		}
		return err
	}
	// there returns the number of entries in a directory of the store, except those that are being
	// removed.
	there := func(name string) int {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		n := 0
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "gone-") {
				n++
			}
		}
		return n
	}
	left := func(layers, leases int) error {
		mounts := leases
		if leases > 0 && imagetest.IsEROFS() {
			mounts++ // of layers
		}
		for name, want := range map[string]int{
			"store/staging": 0, "store/layers": layers, "records/imagerecords": layers / 2, "store/rw": leases, "state": mounts,
		} {
			if got := there(name); got != want {
				return fmt.Errorf("%s has %d entries, want %d", name, got, want)
			}
		}
		return nil
	}
	tracer := filetrace.Start(t, dir)
	calls := 0
	var tolerated []string
	for _, op := range []struct {
		name          string
		before, after []func() error
		do, check     func() error
		layers        int // number of layers after the operation
		leases        int
	}{
		{"pull", nil, []func() error{remove}, pull, pulled, 2, 0},
		{"mount", []func() error{pull}, []func() error{unmount, remove}, mount, mounted, 2, 1},
		{"unmount", []func() error{pull, mount}, []func() error{remove}, unmount, nothing, 2, 0},
		{"remove", []func() error{pull}, nil, remove, nothing, 0, 0},
	} {
		all := func(steps []func() error) {
			t.Helper()
			for _, step := range steps {
				if err := step(); err != nil {
					t.Fatalf("%s: %v", op.name, err)
				}
			}
		}
		try := func(n int, errno syscall.Errno) bool {
			all(append(op.before, swept))
			tracer.Arm(n, errno)
			err := op.do()
			f := tracer.Disarm()
			if f.Happened && err == nil && strings.Contains(f.What, "sync") {
				t.Errorf("%s returned no error for %s", op.name, f.What)
			}
			if !f.Happened && err != nil {
				t.Errorf("%s: %v, though no call has failed", op.name, err)
			}
			if err == nil && f.Happened {
				tolerated = append(tolerated, op.name+": "+f.What)
			}
			if strings.Contains(f.What, "/gone-") {
				// It is removed at the next start, and does no harm until then.
				gone, _ := filepath.Glob(filepath.Join(dir, "store", "staging", "gone-*"))
				for _, path := range gone {
					if err := os.RemoveAll(path); err != nil {
						t.Error(err)
					}
				}
			}
			first := err
			if err != nil && op.name == "mount" {
				// CRI's clients retry with a new container, and so with another key.
				if err := left(op.layers, 0); err != nil {
					t.Errorf("mount, after %s (%v): %v", f.What, first, err)
				}
			}
			if err != nil {
				err = op.do()
			}
			if err == nil {
				err = op.check()
			}
			if err == nil {
				err = left(op.layers, op.leases)
			}
			if err != nil {
				t.Errorf("%s, after %s (%v): %v", op.name, f.What, first, err)
			}
			all(op.after)
			if err := left(0, 0); err != nil {
				t.Errorf("%s, after %s (%v), at the end: %v", op.name, f.What, first, err)
			}
			return f.Happened
		}
		errnos := []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EMFILE, unix.ENOMEM}
		for n := 1; !t.Failed(); n++ {
			happened := false
			for i, errno := range errnos {
				if i == n%len(errnos) || os.Getenv("CRISP_NTH") == "full" {
					happened = try(n, errno)
				}
			}
			if !happened {
				break
			}
			calls++
		}
	}
	t.Logf("%d calls failed, of which nothing was said:\n%s", calls, strings.Join(tolerated, "\n"))
}

// If a call fails while a store is opened, the open fails, or the store has everything that it had:
// what cannot be read for lack of a descriptor must not be taken for damaged and be removed.
func TestNthCallOfOpenFails(t *testing.T) {
	imagetest.NeedRoot(t)
	reg := imagetest.NewRegistry(t)
	img := imagetest.Build(t, "gzip", "base", "top")
	reg.Push("app", "v1", img)
	ref := reg.Host + "/app:v1"
	want := contents(t, img)
	dir := t.TempDir()
	settings := settingsOf(t, reg)
	records, err := openRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := openBelow(t, dir, settings, records)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, "state"), unix.MNT_DETACH) })
	if _, err := s.Pull(t.Context(), ref, registry.Caller{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RootFS().Mount(t.Context(), "k", img.ID(), rootfs.MountOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.RootFS().Unmount(t.Context(), "k", false), s.Close()); err != nil {
		t.Fatal(err)
	}
	defer func() { // the lease keeps its layers mounted
		s, err := openBelow(t, dir, settings, records)
		if err == nil {
			err = errors.Join(s.RootFS().Unmount(t.Context(), "k", true), s.Close())
		}
		if err != nil {
			t.Error(err)
		}
	}()
	tracer := filetrace.Start(t, dir)
	calls := 0
	errnos := []syscall.Errno{unix.EIO, unix.EMFILE, unix.ENOMEM}
	if os.Getenv("CRISP_NTH") != "full" {
		errnos = errnos[:2]
	}
	for _, errno := range errnos {
		for n := 1; !t.Failed(); n++ {
			tracer.Arm(n, errno)
			s, err := openBelow(t, dir, settings, records)
			f := tracer.Disarm()
			if err != nil {
				if s, err = openBelow(t, dir, settings, records); err != nil {
					t.Fatalf("after %s: %v", f.What, err)
				}
			}
			got, err := s.Get(ref)
			if err == nil {
				err = whole(dir, got, want)
			}
			if err == nil {
				// The root file system still has its layers.
				_, err = s.RootFS().Mount(t.Context(), "k", img.ID(), rootfs.MountOptions{})
			}
			if err := errors.Join(err, s.RootFS().Unmount(t.Context(), "k", false), s.Close()); err != nil {
				t.Errorf("after %s: %v", f.What, err)
			}
			if !f.Happened {
				break
			}
			calls++
		}
	}
	t.Logf("%d calls failed", calls)
}
