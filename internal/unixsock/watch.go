package unixsock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/crisp-cri/crisp/internal/periodic"
)

// Period is how often Watch looks. A look is a few calls of stat(2).
const Period = 3 * time.Second

// Watch calls look each Period until ctx ends. It logs the restored paths, and an error if it
// differs from the previous one.
func Watch(ctx context.Context, log *slog.Logger, look func() (again []string, err error)) {
	last := ""
	periodic.Run(ctx, Period, func(context.Context) {
		again, err := look()
		for _, path := range again {
			log.Warn("file had been removed, and was put back", "path", path)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != last {
			log.Warn("files that were removed cannot be put back", "err", err)
		}
		last = text
	})
}

// LookAll looks at each of the listeners.
func LookAll(listeners ...*Listener) (again []string, err error) {
	for _, l := range listeners {
		bound, lerr := l.Look()
		if bound {
			again = append(again, l.path)
		}
		err = errors.Join(err, lerr)
	}
	return again, err
}
