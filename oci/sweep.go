package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/undo"
)

// sweep removes objects without a record: those whose creation died before the record was
// written, and those whose record was corrupt. It looks only below our own directories and at
// our own executor, never at what others may have created.
func (r *Runtime) sweep(ctx context.Context) {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	infos, err := r.link.list(ctx)
	if err != nil {
		r.log.Error("executor could not be swept", "err", err)
	}
	for _, info := range infos {
		if !r.knows(info.ID) {
			r.swept("container", info.ID, r.expunge(ctx, info.ID))
		}
	}
	for _, id := range unknownDirs(filepath.Join(r.o.State, containerKind), r.containers.has) {
		r.swept("container", id, r.sweepContainer(ctx, id))
	}
	for _, id := range unknownDirs(filepath.Join(r.o.State, sandboxKind), r.sandboxes.has) {
		r.swept("sandbox", id, r.sweepSandbox(ctx, id))
	}
	for _, id := range r.strayNetNS() {
		r.swept("sandbox", id, r.sweepSandbox(ctx, id))
	}
	for _, id := range unknownDirs(filepath.Join(r.o.Root, containerKind), r.containers.has) {
		r.swept("container", id, r.o.Records.Remove(containerKind, id))
	}
	for _, id := range unknownDirs(filepath.Join(r.o.Root, sandboxKind), r.sandboxes.has) {
		r.swept("sandbox", id, errors.Join(r.sweepSandbox(ctx, id), r.o.Records.Remove(sandboxKind, id)))
	}
}

// sweepContainer removes a container without a record; its status names its cgroups.
func (r *Runtime) sweepContainer(ctx context.Context, id string) error {
	dir := filepath.Join(r.o.State, containerKind, id)
	errs := []error{r.expunge(ctx, id)}
	var st containerStatus
	if atomicfile.ReadJSON(filepath.Join(dir, "status.json"), &st) == nil {
		errs = append(errs, removeCgroups(id, st.Cgroups))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// sweepSandbox removes a sandbox without a record. The name of its own cgroup, if it had one,
// follows from its ID.
func (r *Runtime) sweepSandbox(ctx context.Context, id string) error {
	dir := filepath.Join(r.o.State, sandboxKind, id)
	err := errors.Join(
		r.expunge(ctx, id),
		r.host.Unpin(Pins{Dir: dir, NetNS: r.netNSPath(id)}),
		r.host.Cgroup(ownCgroup(id, r.o.SystemdCgroup), false),
	)
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func (r *Runtime) swept(what, id string, err error) {
	if err != nil {
		r.log.Error("leftover could not be removed", what, id, "err", err)
		return
	}
	r.log.Warn("leftover was removed", what, id)
}

func (r *Runtime) knows(id string) bool { return r.containers.has(id) || r.sandboxes.has(id) }

// has reports whether id is the full ID of an object.
func (s *store[T]) has(id string) bool {
	_, ok := s.exact(id)
	return ok
}

// unknownDirs lists the directories in dir for which known is false.
func unknownDirs(dir string, known func(string) bool) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // nothing there to sweep
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && !known(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids
}
