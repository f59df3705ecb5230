package nri

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	nrilog "github.com/containerd/nri/pkg/log"
)

// lines is where the library's log goes, which it has one of in a process; nil
// is nowhere.
var lines atomic.Pointer[slog.Logger]

var route = sync.OnceFunc(func() { nrilog.Set(logger{}) })

// A logger leads the library's lines to slog. It writes variables into its
// messages; that is its own.
type logger struct{}

func (logger) line(ctx context.Context, level slog.Level, format string, args []any) {
	if log := lines.Load(); log != nil && log.Enabled(ctx, level) {
		log.Log(ctx, level, fmt.Sprintf("nri: "+format, args...))
	}
}

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelDebug, format, args)
}

// What the library has to say at Info (each connection, in several lines) is
// for who looks for a fault.
func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelDebug, format, args)
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelWarn, format, args)
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelError, format, args)
}
