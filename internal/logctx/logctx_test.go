package logctx_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/crisp-cri/crisp/internal/logctx"
)

func TestAttributesOfTheContextReachTheLine(t *testing.T) {
	var buf bytes.Buffer
	drop := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	log := slog.New(logctx.Handler(slog.NewTextHandler(&buf, &slog.HandlerOptions{ReplaceAttr: drop}))).With("daemon", "crispd")

	ctx := logctx.With(t.Context(), "rpc", "StopContainer")
	one := logctx.With(ctx, "container", "1")
	two := logctx.With(ctx, "container", "2") // must not overwrite one's attributes
	log.InfoContext(one, "stopped")
	log.InfoContext(two, "stopped", "took", 3)

	want := "level=INFO msg=stopped daemon=crispd rpc=StopContainer container=1\n" +
		"level=INFO msg=stopped daemon=crispd took=3 rpc=StopContainer container=2\n"
	if got := buf.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
