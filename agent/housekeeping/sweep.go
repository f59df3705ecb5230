package housekeeping

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
)

const (
	// sweeping is how often leftovers are removed.
	sweeping = time.Minute
	// pruning is how often the pull records of removed images are removed.
	pruning = 10 * time.Minute
)

// sweep removes the leftovers of pods whose end this agent has not seen.
func (k *Keeper) sweep(ctx context.Context) {
	if !k.o.Pods.Ready() {
		return
	}
	known := map[string]bool{}
	for _, pod := range k.o.Pods.Wanted() {
		known[string(pod.UID)] = true
	}
	dirs, err := os.ReadDir(filepath.Join(k.o.Root, "pods")) // also of pods whose record cannot be read
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.o.Log.WarnContext(ctx, "leftovers of pods not listed", "err", err)
		return
	}
	for _, dir := range dirs {
		known[dir.Name()] = true
	}
	if err = errors.Join(k.o.Cgroups.Sweep(known), k.sweepLogs(known), k.sweepLinks(), k.prunePulled(ctx)); err != nil {
		k.o.Log.WarnContext(ctx, "leftovers of pods not removed", "err", err)
	}
}

// sweepLogs removes the logs of unknown pods, but only if the directory of logs is below the
// agent's own, where no other program's logs are.
func (k *Keeper) sweepLogs(known map[string]bool) error {
	if rest, err := filepath.Rel(k.o.Root, k.o.LogDir); err != nil || !filepath.IsLocal(rest) {
		return nil
	}
	entries, err := os.ReadDir(k.o.LogDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		words := strings.Split(e.Name(), "_") // namespace, name, UID
		if len(words) != 3 || known[words[2]] {
			continue
		}
		if info, infoErr := e.Info(); infoErr != nil || time.Since(info.ModTime()) < sweeping {
			continue // its pod may be about to be accepted
		}
		err = errors.Join(err, os.RemoveAll(filepath.Join(k.o.LogDir, e.Name())))
	}
	return err
}

// prunePulled removes the pull records of removed images.
func (k *Keeper) prunePulled(ctx context.Context) error {
	if time.Since(k.pruned) < pruning {
		return nil
	}
	k.pruned = time.Now()
	images, err := k.o.Images.ListImages(ctx, nil)
	if err != nil {
		return criruntime.Fault(err)
	}
	there := map[string]bool{}
	for _, image := range images {
		there[image.Id] = true
	}
	return k.o.Pulled.Prune(func(id string) bool { return there[id] }, k.pruned)
}

// sweepLinks removes dangling links into this agent's directory of logs.
func (k *Keeper) sweepLinks() error {
	if k.o.LogLinks == "" {
		return nil
	}
	entries, err := os.ReadDir(k.o.LogLinks)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		link := filepath.Join(k.o.LogLinks, e.Name())
		target, readErr := os.Readlink(link)
		if rest, relErr := filepath.Rel(k.o.LogDir, target); readErr != nil || relErr != nil || !filepath.IsLocal(rest) {
			continue
		}
		if _, statErr := os.Stat(target); errors.Is(statErr, fs.ErrNotExist) {
			err = errors.Join(err, os.Remove(link))
		}
	}
	return err
}
