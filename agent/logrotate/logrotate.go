// Package logrotate keeps the logs of containers within bounds, as the kubelet
// does: 0.log that has grown beyond the limit becomes 0.log.20261122-010203, the
// runtime opens a new one, and what was rotated before is compressed. The newest
// rotated file stays as it is: whoever follows the log may still be reading it.
package logrotate

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/periodic"
)

// A Runtime has the logs. Logs returns the paths of those of running containers,
// by ID; Reopen has the runtime open the path anew.
type Runtime interface {
	Logs(ctx context.Context) (map[string]string, error)
	Reopen(ctx context.Context, id string) error
}

// A Rotator rotates logs larger than Size bytes and keeps Files files of each,
// the current one included.
type Rotator struct {
	Runtime Runtime
	Size    int64
	Files   int
	Period  time.Duration // how often sizes are looked at
	Log     *slog.Logger
}

// DefaultPeriod and MinPeriod are the kubelet's. Rotated files are named by the
// second.
const (
	DefaultPeriod = 10 * time.Second
	MinPeriod     = 3 * time.Second
)

// Run rotates until ctx ends.
func (r *Rotator) Run(ctx context.Context) {
	periodic.Run(ctx, r.Period, r.All)
}

// All looks at all logs once.
func (r *Rotator) All(ctx context.Context) {
	logs, err := r.Runtime.Logs(ctx)
	if err != nil {
		return // the runtime is away: others tell of it
	}
	for id, path := range logs {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			// Who was to have it opened anew was killed, or somebody removed it. The
			// container writes to a file that has another name, or none.
			if err = r.Runtime.Reopen(ctx, id); err == nil {
				continue
			}
		}
		if err == nil && info.Size() < r.Size {
			continue
		}
		if err == nil {
			err = r.rotate(ctx, id, path)
		}
		if err != nil && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "log not rotated", "container", id, "log", path, "err", err)
		}
	}
}

const (
	compressed = ".gz"
	unfinished = ".tmp"
	stamp      = "20060102-150405"
)

func (r *Rotator) rotate(ctx context.Context, id, path string) error {
	old, err := clean(path)
	if err != nil {
		return err
	}
	// One more comes, and there is the current one.
	for keep := max(r.Files-2, 0); len(old) > keep; old = old[1:] {
		if err := os.Remove(old[0]); err != nil {
			return err
		}
	}
	for _, file := range old {
		if strings.HasSuffix(file, compressed) {
			continue
		}
		if err := compress(file); err != nil {
			return err
		}
	}
	to := path + "." + time.Now().Format(stamp)
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("%s is there already", to)
	}
	if err := os.Rename(path, to); err != nil {
		return err
	}
	if err := r.Runtime.Reopen(ctx, id); err != nil {
		// The container writes to the old file still: it keeps its name.
		return errors.Join(err, os.Rename(to, path))
	}
	return nil
}

// clean removes what a crash has left of compressing, and returns the rotated
// files, the oldest first.
func clean(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+".") {
			there[filepath.Join(filepath.Dir(path), e.Name())] = true
		}
	}
	var files []string
	for file := range there {
		if strings.HasSuffix(file, unfinished) || there[file+compressed] {
			if err := os.Remove(file); err != nil {
				return nil, err
			}
			continue
		}
		files = append(files, file)
	}
	slices.Sort(files)
	return files, nil
}

func compress(path string) (err error) {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	tmp := path + unfinished
	to, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(to)
	_, err = io.Copy(z, from)
	if err = errors.Join(err, z.Close(), to.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, path+compressed); err != nil {
		return err
	}
	return os.Remove(path)
}
