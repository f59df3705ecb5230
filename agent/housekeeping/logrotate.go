package housekeeping

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

// A logRuntime writes the logs. Logs returns the log paths of the running containers by ID. Reopen
// makes the runtime open the path of a container's log again.
type logRuntime interface {
	Logs(ctx context.Context) (map[string]string, error)
	Reopen(ctx context.Context, id string) error
}

// A rotator rotates logs of at least LogSize bytes. It keeps LogFiles files of each log, the
// current one included, but no fewer than two.
//
// A 0.log that has reached the limit becomes 0.log.20261122-010203, the runtime opens a new 0.log,
// and files that were rotated before are compressed. The newest rotated file stays uncompressed
// because readers that follow the log may not have finished it.
type rotator struct {
	Rules
	Runtime logRuntime
	Log     *slog.Logger
}

// DefaultLogPeriod and MinLogPeriod are the kubelet's. Rotations of a log must be more than a second
// apart, because the time in the name of a rotated file is in seconds.
const (
	DefaultLogPeriod = 10 * time.Second
	MinLogPeriod     = 3 * time.Second
)

// Run calls All every LogPeriod, until ctx ends.
func (r *rotator) Run(ctx context.Context) {
	periodic.Run(ctx, r.LogPeriod, r.All)
}

// All checks all logs once.
func (r *rotator) All(ctx context.Context) {
	logs, err := r.Runtime.Logs(ctx)
	if err != nil {
		return // the runtime is down, which is reported elsewhere
	}
	for id, path := range logs {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			// An agent was killed before it called Reopen, or the file was removed. The
			// container writes to a file with another name, or with none.
			if err = r.Runtime.Reopen(ctx, id); err == nil {
				continue
			}
		}
		if err == nil && info.Size() < r.LogSize {
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

func (r *rotator) rotate(ctx context.Context, id, path string) error {
	old, err := clean(path)
	if err != nil {
		return err
	}
	// The new log and the file that the current one becomes count too.
	for keep := max(r.LogFiles-2, 0); len(old) > keep; old = old[1:] {
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
	to := path + "." + stampAfter(path, old)
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("%s already exists", to)
	}
	if err := os.Rename(path, to); err != nil {
		return err
	}
	if err := r.Runtime.Reopen(ctx, id); err != nil {
		// The container still writes to the old file: restore its name.
		return errors.Join(err, os.Rename(to, path))
	}
	return nil
}

// stampAfter returns the time for the name of a file that is rotated now. It is after those of
// earlier rotated files, even if the clock was set back: the files are read and removed in the
// order of their names.
func stampAfter(path string, old []string) string {
	now := time.Now().Format(stamp)
	if len(old) == 0 {
		return now
	}
	text := strings.TrimSuffix(strings.TrimPrefix(old[len(old)-1], path+"."), compressed)
	if last, err := time.Parse(stamp, text); err == nil && text >= now {
		return last.Add(time.Second).Format(stamp)
	}
	return now
}

// clean removes the leftovers of an interrupted compression, and returns the rotated files,
// oldest first.
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
