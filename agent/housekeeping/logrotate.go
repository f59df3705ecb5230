package housekeeping

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/periodic"
)

// A logRuntime writes the logs. Logs returns the log paths of the running containers by ID. Reopen
// makes the runtime open the path of a container's log again.
type logRuntime interface {
	Logs(ctx context.Context) (map[string]string, error)
	Reopen(ctx context.Context, id string) error
}

// A rotator keeps LogFiles files of each log, the current one included, but no fewer than two, and
// compresses the rotated ones. The newest of these stays uncompressed because readers that follow the
// log may not have finished it, and others if a copy would not fit into LogFiles times LogSize.
//
// crispd rotates logs by itself at LogSize (crilog.Limit). A log that has more is another runtime's, or
// of a container from before a change: a 0.log becomes 0.log.20261122-010203, and the runtime opens a
// new 0.log.
type rotator struct {
	Rules
	Runtime logRuntime
	Log     *slog.Logger
}

// DefaultLogPeriod and MinLogPeriod are the kubelet's.
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
		switch {
		case err != nil:
		case info.Size() > r.LogSize:
			err = r.rotate(ctx, id, path)
		default:
			err = r.tidy(path, 1)
		}
		if err != nil && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "log not rotated", "container", id, "log", path, "err", err)
		}
	}
}

const (
	compressed = ".gz"
	unfinished = ".tmp"
)

// tidy removes rotated files beyond the limit, and compresses the others but the newest ones, as many as
// uncompressed. If that is 0, another one may be added. The executor may remove a file meanwhile.
func (r *rotator) tidy(path string, uncompressed int) error {
	old, err := clean(path)
	if err != nil {
		return err
	}
	// The current log counts too.
	for keep := max(r.LogFiles-2, 0) + uncompressed; len(old) > keep; old = old[1:] {
		if err := os.Remove(old[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, file := range old[:max(len(old)-uncompressed, 0)] {
		if strings.HasSuffix(file, compressed) {
			continue
		}
		if err := r.compress(path, file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (r *rotator) limit() crilog.Limit { return crilog.Limit{Size: r.LogSize, Files: r.LogFiles} }

func (r *rotator) rotate(ctx context.Context, id, path string) error {
	if err := r.tidy(path, 0); err != nil {
		return err
	}
	stamps, _, err := r.limit().Rotated(path)
	if err != nil {
		return err
	}
	to := path + "." + crilog.StampAfter(stamps)
	if err := os.Rename(path, to); err != nil {
		return err
	}
	if err := r.Runtime.Reopen(ctx, id); err != nil {
		// The container still writes to the old file: restore its name.
		return errors.Join(err, os.Rename(to, path))
	}
	return nil
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
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			continue
		}
		files = append(files, file)
	}
	slices.SortFunc(files, func(a, b string) int {
		return strings.Compare(strings.TrimSuffix(a, compressed), strings.TrimSuffix(b, compressed))
	})
	return files, nil
}

func (r *rotator) compress(log, path string) (err error) {
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
	// Once the copy is there, a rotation counts it: now it is known whether it fits. Files that
	// exceed the limit anyway are compressed all the same.
	_, sizes, err := r.limit().Rotated(log)
	total, room := int64(0), r.LogSize*int64(r.LogFiles-1)
	for _, size := range sizes {
		total += size
	}
	if info, serr := from.Stat(); err != nil || serr != nil || total > room && info.Size() <= r.LogSize {
		return errors.Join(err, serr, to.Close(), os.Remove(tmp))
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
