package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/apparmor"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/rootless"
	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/crisp-cri/crisp/internal/unixsock"
	"github.com/crisp-cri/crisp/oci"
)

// wipeTimeout bounds a whole wipe: plugins and processes may hang.
const wipeTimeout = 5 * time.Minute

// wipe ends every container and sandbox of this instance and removes what it made on the host:
// processes, cgroups, mounts, namespaces, network, the state directory, and with all the root
// directory too. It refuses while a crispd runs. It may be repeated. After an error it continues
// where that does no harm; without an executor, which alone can end containers, both directories
// stay. Cgroups that clients named as parents stay too: they are the clients', who may have made
// them or use them for more than these pods.
func wipe(c *config.Config, all bool, out io.Writer) error {
	if !exists(c.Root) && !exists(c.State) {
		fmt.Fprintf(out, "nothing to wipe: neither %s nor %s exists\n", c.Root, c.State)
		return nil
	}
	log := newLog(config.Log{Level: "warn", Format: c.Log.Format})
	files, err := takeFiles(c.Root, c.State)
	if err != nil {
		return err
	}
	defer files.close()
	ctx, cancel := context.WithTimeout(context.Background(), wipeTimeout)
	defer cancel()
	w := wiping{c: c, out: out}

	records, err := checkpoint.Open(c.Root, c.State, log)
	if err != nil {
		return err
	}
	runtime, err := oci.Open(ctx, ociOptions(c, records, usesSystemd(c, kernel.Probe()), nil, log))
	switch {
	case err == nil:
		w.runtime(ctx, runtime)
	case unixsock.Answers(filepath.Join(c.State, "executor.sock")):
		// Containers are running, and only the executor can end them.
		return err
	default:
		// Containers may be running, unless a reboot has emptied the state directory.
		// Their records are kept for a wipe that can end them.
		w.note("runtime", err)
		left, _ := os.ReadDir(filepath.Join(c.State, "sandboxes")) // without the directory no sandbox is left
		w.keep = len(left) > 0
	}
	if n, err := openNetworks(c, nil, log); err != nil {
		w.note("network", err)
	} else {
		gc, cancel := context.WithTimeout(ctx, wipeTimeout/5) // a plugin that hangs leaves time for the rest
		w.note("network", errors.Join(n.GC(gc, nil), n.Destroy(ctx), n.Close()))
		cancel()
	}
	if images, err := image.Open(ctx, imageOptions(c, records, log)); err != nil {
		w.note("images", err)
	} else {
		w.images(ctx, images)
	}
	if kernel.Probe().AppArmor {
		w.note("AppArmor profile", apparmor.New(ownProfile(c)).Unload(ctx))
	}
	w.unmount()
	w.namespaces()
	if !w.keep {
		w.remove(ctx, c.State)
	}
	if all && !w.keep {
		w.remove(ctx, config.Resolve(c.Root))
	}
	if !w.keep {
		w.note("user namespace", rootless.End())
	}
	return errors.Join(w.errs...)
}

// A wiping is a wipe in progress; it collects the errors.
type wiping struct {
	c    *config.Config
	out  io.Writer
	errs []error
	keep bool // keep the directories, for a repeated wipe
}

func (w *wiping) note(what string, err error) {
	if err != nil {
		w.errs = append(w.errs, fmt.Errorf("wipe %s: %w", what, err))
	}
}

func (w *wiping) runtime(ctx context.Context, r *oci.Runtime) {
	for _, c := range r.Containers() {
		fmt.Fprintf(w.out, "container %s %s\n", c.ID(), c.Config().Name)
	}
	for _, sb := range r.Sandboxes() {
		fmt.Fprintf(w.out, "sandbox %s %s\n", sb.ID(), sb.Config().Name)
	}
	w.note("containers", errors.Join(r.Shutdown(ctx), r.Close()))
}

func (w *wiping) images(ctx context.Context, s *image.Store) {
	for _, key := range s.RootFS().Mounts() {
		fmt.Fprintf(w.out, "root file system %s\n", key)
		w.note("root file system "+key, s.RootFS().Unmount(ctx, key, true))
	}
	w.note("images", s.Close())
}

// unmount removes the remaining mounts below our directories, the last mounted first.
func (w *wiping) unmount() {
	mounts, err := w.mounts()
	w.note("mounts", err)
	for _, m := range slices.Backward(mounts) {
		fmt.Fprintf(w.out, "mount %s\n", m.Mountpoint)
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			w.note("mount "+m.Mountpoint, err)
		}
		if w.isNull(m) { // in a directory of runsc's, which has a directory of ours
			w.note("network namespace", os.Remove(m.Mountpoint))
			_ = os.Remove(filepath.Dir(m.Mountpoint)) // unless there is more in it
		}
	}
}

// isNull reports whether a mount is the empty network namespace that gVisor keeps for all containers of
// an instance, in a directory that only gVisor's options name.
func (w *wiping) isNull(m *mountinfo.Info) bool {
	dir, name := filepath.Split(m.Mountpoint)
	return name == "null-netns" && m.FSType == "nsfs" && filepath.Base(dir) == oci.ShimNamespace(w.c.State)
}

func (w *wiping) mounts() ([]*mountinfo.Info, error) {
	netNS, root := config.Resolve(netNSDir(w.c)), config.Resolve(w.c.Root) // /var/run is a link to /run
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		pin := filepath.Dir(m.Mountpoint) == netNS && oci.NetNSOwner(filepath.Base(m.Mountpoint)) != ""
		return !pin && !w.isNull(m) && !below(m.Mountpoint, root) && !below(m.Mountpoint, w.c.State), false
	})
}

// namespaces removes the files that pin the pods' network namespaces, from a directory that
// others use too.
func (w *wiping) namespaces() {
	entries, err := os.ReadDir(netNSDir(w.c))
	if err != nil {
		return // there is none
	}
	for _, e := range entries {
		if oci.NetNSOwner(e.Name()) != "" {
			w.note("network namespace", os.Remove(filepath.Join(netNSDir(w.c), e.Name())))
		}
	}
}

// remove removes one of our directories, but never through a mount, which may have a user's
// data.
func (w *wiping) remove(ctx context.Context, dir string) {
	mounts, err := w.mounts()
	for _, m := range mounts {
		if below(m.Mountpoint, dir) {
			err = errors.Join(err, fmt.Errorf("%s is still mounted", m.Mountpoint))
		}
	}
	if err == nil {
		err = tree.Remove(ctx, dir)
	}
	// A file system mounted on dir itself: it is empty now, and the mount stays.
	var path *fs.PathError
	if errors.Is(err, unix.EBUSY) && errors.As(err, &path) && filepath.Clean(path.Path) == filepath.Clean(dir) {
		err = nil
	}
	if err != nil {
		w.note(dir, err)
		return
	}
	fmt.Fprintf(w.out, "directory %s\n", dir)
}

// below reports whether path is strictly below dir: the administrator may have mounted something
// on dir itself.
func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != "." && filepath.IsLocal(rel)
}
