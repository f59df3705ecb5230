package main

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/sirupsen/logrus"
	"golang.org/x/term"
	"k8s.io/klog/v2"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/logctx"
)

// newLog makes the one logger of this process and passes it to the libraries that have their own
// loggers.
func newLog(c config.Log) *slog.Logger {
	setLevel(c.Level)
	options := &slog.HandlerOptions{Level: &logLevel, ReplaceAttr: readable}
	var h slog.Handler = slog.NewJSONHandler(os.Stderr, options)
	if c.Format == "text" || (c.Format == "auto" && term.IsTerminal(int(os.Stderr.Fd()))) {
		h = slog.NewTextHandler(os.Stderr, options)
	}
	log := slog.New(logctx.Handler(h))
	slog.SetDefault(log)

	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.DebugLevel) // slog decides
	logrus.AddHook(bridge{log})
	klog.SetSlogLogger(slog.New(demoted{log.Handler()}))
	return log
}

// logLevel is the current level.
var logLevel slog.LevelVar

func setLevel(name string) {
	var level slog.Level
	_ = level.UnmarshalText([]byte(name)) // config has checked it
	logLevel.Set(level)
}

// demoted logs every line at level debug. The Kubernetes libraries log clients of exec and
// port-forward that disconnect as errors; the RPC's line already says so.
type demoted struct{ slog.Handler }

func (h demoted) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.Handler.Enabled(ctx, slog.LevelDebug)
}

func (h demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}

func (h demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{h.Handler.WithAttrs(attrs)}
}

func (h demoted) WithGroup(name string) slog.Handler { return demoted{h.Handler.WithGroup(name)} }

// readable formats durations for people; in JSON they would be nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// A bridge sends logrus' lines to slog. The messages are the libraries' own, and contain
// variables.
type bridge struct{ log *slog.Logger }

func (bridge) Levels() []logrus.Level { return logrus.AllLevels }

func (b bridge) Fire(e *logrus.Entry) error {
	ctx := e.Context
	if ctx == nil {
		ctx = context.Background()
	}
	level := slog.LevelDebug
	switch e.Level {
	case logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel:
		level = slog.LevelError
	case logrus.WarnLevel:
		level = slog.LevelWarn
	case logrus.InfoLevel:
		level = slog.LevelInfo
	}
	attrs := make([]slog.Attr, 0, len(e.Data))
	for k, v := range e.Data {
		attrs = append(attrs, slog.Any(k, v))
	}
	b.log.LogAttrs(ctx, level, e.Message, attrs...)
	return nil
}
