package nri

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	nrilog "github.com/containerd/nri/pkg/log"
)

// lines receives the library's log, of which a process has only one; nil discards it.
var lines atomic.Pointer[slog.Logger]

var route = sync.OnceFunc(func() { nrilog.Set(logger{}) })

// A logger sends the library's log to slog. The messages are the library's own, with variables
// in them.
type logger struct{}

func (logger) line(ctx context.Context, level slog.Level, format string, args []any) {
	if log := lines.Load(); log != nil && log.Enabled(ctx, level) {
		log.Log(ctx, level, fmt.Sprintf("nri: "+format, args...))
	}
}

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelDebug, format, args)
}

// Infof logs at debug level: the library logs several lines for each connection at Info.
func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelDebug, format, args)
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelWarn, format, args)
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelError, format, args)
}
