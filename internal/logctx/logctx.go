// Package logctx carries log attributes in a context, so that a line logged deep below an RPC
// still says which RPC and which object it is about.
package logctx

import (
	"context"
	"log/slog"
)

type key struct{}

// With returns a context whose log lines also carry args; they are pairs or slog.Attrs, as for
// slog.Logger.With.
func With(ctx context.Context, args ...any) context.Context {
	old, _ := ctx.Value(key{}).([]any)
	return context.WithValue(ctx, key{}, append(old[:len(old):len(old)], args...))
}

// Handler returns a handler that adds the attributes of the context to each
// record and hands it on to h.
func Handler(h slog.Handler) slog.Handler { return handler{h} }

type handler struct{ slog.Handler }

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if args, _ := ctx.Value(key{}).([]any); len(args) > 0 {
		r = r.Clone()
		r.Add(args...)
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs)}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name)}
}
