package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/server/spec"
	"github.com/crisp-cri/crisp/test/testenv"
)

// Paths lead where the kernel says that they lead, in random root file systems and mounts with
// links at each component: absolute, relative, with "..", dangling and in circles.
func TestPlacesAreTheKernels(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	compared := 0
	for seed := range uint64(200) {
		dir := t.TempDir()
		err := thread.Run(func() error {
			if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "")); err != nil {
				return err
			}
			n, err := comparePlaces(dir, rand.New(rand.NewPCG(seed, 0)))
			compared += n
			return err
		})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	if compared < 10_000 {
		t.Errorf("only %d paths lead anywhere", compared)
	}
}

// comparePlaces compares the places of random paths in one random container.
func comparePlaces(dir string, r *rand.Rand) (compared int, err error) {
	names := []string{"a", "b", "c", "d"}
	name := func(most int) string {
		var parts []string
		for range 1 + r.IntN(most) {
			parts = append(parts, names[r.IntN(len(names))])
		}
		return strings.Join(parts, "/")
	}
	fill := func(root string) error {
		for range 12 {
			at := filepath.Join(root, name(3))
			if os.MkdirAll(filepath.Dir(at), 0o755) != nil { // a link on the way
				continue
			}
			target := name(3)
			switch r.IntN(4) {
			case 0:
				target = "/" + target
			case 1:
				target = "../" + target
			case 2:
				target = name(2) + "/../" + target
			case 3:
				target = ""
			}
			if target == "" {
				os.Mkdir(at, 0o755)
			} else {
				os.Symlink(target, at)
			}
		}
		return nil
	}
	root, view := filepath.Join(dir, "root"), filepath.Join(dir, "view") // without the mounts, and with them
	var mounts []spec.Mount
	for i := range 3 {
		source := filepath.Join(dir, fmt.Sprint("source", i))
		if err := errors.Join(os.Mkdir(source, 0o755), fill(source)); err != nil {
			return 0, err
		}
		mounts = append(mounts, spec.Mount{Mount: &cri.Mount{ContainerPath: "/" + name(3)}, Source: source})
	}
	if err := errors.Join(os.Mkdir(root, 0o755), os.Mkdir(view, 0o755), fill(root), unix.Mount(root, view, "", unix.MS_BIND, "")); err != nil {
		return 0, err
	}
	top, err := os.OpenFile(view, unix.O_PATH, 0)
	if err != nil {
		return 0, err
	}
	defer top.Close()
	lead := func(name string) (*os.File, string) {
		fd, err := unix.Openat2(int(top.Fd()), name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
		if err != nil {
			return nil, ""
		}
		f := os.NewFile(uintptr(fd), name)
		at, _ := os.Readlink(fmt.Sprintf("/proc/thread-self/fd/%d", fd))
		return f, filepath.Join("/", strings.TrimPrefix(at, view))
	}
	// As a container's init does: parents first.
	slices.SortStableFunc(mounts, func(a, b spec.Mount) int { return depth(&a) - depth(&b) })
	var made []spec.Mount
	for _, m := range mounts {
		f, at := lead(m.ContainerPath)
		if f == nil {
			continue
		}
		if at != "/" {
			made = append(made, m)
			err = unix.Mount(m.Source, fmt.Sprintf("/proc/thread-self/fd/%d", f.Fd()), "", unix.MS_BIND, "")
		}
		f.Close()
		if err != nil {
			return 0, err
		}
		if newPlaces(root, nil, made); at != "/" && made[len(made)-1].Place != at {
			return 0, fmt.Errorf("mount at %s leads to %s, not %s", m.ContainerPath, at, made[len(made)-1].Place)
		}
	}
	p := newPlaces(root, nil, made)
	for range 200 {
		path := "/" + name(5)
		f, at := lead(path)
		if f == nil {
			p.resolve(path) // ends
			continue
		}
		f.Close()
		if compared++; p.resolve(path) != at {
			return 0, fmt.Errorf("%s leads to %s, not %s", path, at, p.resolve(path))
		}
	}
	return compared, nil
}
