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

// newLog makes the one logger of this process and hands it to the libraries that
// bring loggers of their own.
func newLog(c config.Log) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // config has checked it
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	var h slog.Handler = slog.NewJSONHandler(os.Stderr, options)
	if c.Format == "text" || (c.Format == "auto" && term.IsTerminal(int(os.Stderr.Fd()))) {
		h = slog.NewTextHandler(os.Stderr, options)
	}
	log := slog.New(logctx.Handler(h))
	slog.SetDefault(log)

	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.DebugLevel) // slog decides
	logrus.AddHook(bridge{log})
	klog.SetSlogLogger(log)
	return log
}

// readable writes durations as people read them; JSON would have nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// A bridge carries logrus lines to slog. Libraries write variables into their
// messages; that is theirs.
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
	if !b.log.Enabled(ctx, level) {
		return nil
	}
	attrs := make([]slog.Attr, 0, len(e.Data))
	for k, v := range e.Data {
		attrs = append(attrs, slog.Any(k, v))
	}
	b.log.LogAttrs(ctx, level, e.Message, attrs...)
	return nil
}
