package kernel

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/test/testenv"
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

// A mount that a later one hides is not the one that a path is on, in whatever order the kernel
// lists them.
func TestVisibleMount(t *testing.T) {
	for name, c := range map[string]struct{ path, mounts, want string }{
		"nothing mounted": {"/a", "20 1 / /", "20"},
		"plain":           {"/a/b/c", "20 1 / /;30 20 / /a;40 30 / /a/b;50 20 / /aa", "40"},
		"hidden":          {"/a/b/c", "20 1 / /;30 20 / /a/b;40 20 / /a", "40"},
		"hidden, again":   {"/a/b/c", "20 1 / /;40 20 / /a;30 20 / /a/b;50 40 / /a/b", "50"},
		"stacked":         {"/a", "20 1 / /;30 20 / /a;25 30 / /a", "25"},
		"over the root":   {"/a", "20 1 / /;30 20 / /;40 20 / /a", "40"},
		"first of all":    {"/a", "20 20 / /;40 20 / /a", "40"},
		"in a chroot":     {"/a/b", "30 20 / /a", "30"},
		"not seen":        {"/a", "", ""},
	} {
		var text strings.Builder
		for line := range strings.SplitSeq(c.mounts, ";") {
			if f := strings.Fields(line); len(f) == 4 {
				text.WriteString(f[0] + " " + f[1] + " 0:1 " + f[2] + " " + f[3] + " rw - tmpfs x rw\n")
			}
		}
		mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(text.String()), mountinfo.ParentsFilter(c.path))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if on := visible(mounts); on != nil {
			got = strconv.Itoa(on.ID)
		}
		if got != c.want {
			t.Errorf("%s: %s is on mount %q, want %q", name, c.path, got, c.want)
		}
	}
}

// A mount may be a peer and a slave at once; one that is neither can have optional fields all the
// same.
func TestPropagation(t *testing.T) {
	for optional, want := range map[string][2]bool{
		"":                                {false, false},
		"shared:7":                        {true, false},
		"master:3":                        {false, true},
		"shared:7 master:3":               {true, true},
		"master:3 propagate_from:2":       {false, true},
		"unbindable":                      {false, false},
		"unshared:1 propagate_master:2 x": {false, false},
	} {
		m := &mountinfo.Info{Optional: optional}
		if got := [2]bool{IsShared(m), IsSlave(m)}; got != want {
			t.Errorf("%q: got shared and slave %v, want %v", optional, got, want)
		}
	}
}

// What the kernel says of an open file is the truth: a mount below a directory on which something
// was mounted later is hidden from lookups by path, and so is its propagation.
func TestHiddenMountOnKernel(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	err = thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			return err
		}
		below := filepath.Join(dir, "a", "b")
		for _, at := range []string{below, filepath.Dir(below)} {
			if err := os.MkdirAll(below, 0o755); err != nil {
				return err
			}
			if err := unix.Mount("crisp-test", at, "tmpfs", 0, "size=64k"); err != nil {
				return err
			}
		}
		if err := unix.Mount("", filepath.Dir(below), "", unix.MS_SHARED, ""); err != nil {
			return err
		}
		if err := os.Mkdir(below, 0o755); err != nil {
			return err
		}
		on, err := MountOn(below)
		if err != nil {
			return err
		}
		want, err := mountOf(below)
		if err != nil {
			return err
		}
		if on == nil || on.ID != want || !strings.HasPrefix(on.Optional, "shared:") {
			t.Errorf("%s is on %+v; want mount %d, which is shared", below, on, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mountOf returns the ID of the mount that path is on, by proc_pid_fdinfo(5).
func mountOf(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	data, err := os.ReadFile("/proc/thread-self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(data), "mnt_id:")
	id, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	return strconv.Atoi(id)
}
