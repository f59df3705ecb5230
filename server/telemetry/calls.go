package telemetry

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/crisp-cri/crisp/internal/stage"
)

// ServeCalls serves the list of calls in flight, oldest first, with their current stages: the
// first thing to look at when a node hangs.
func (t *Telemetry) ServeCalls(w http.ResponseWriter, _ *http.Request) {
	var list []*Call
	t.calls.Range(func(c, _ any) bool {
		list = append(list, c.(*Call))
		return true
	})
	slices.SortFunc(list, func(a, b *Call) int { return cmp.Compare(a.Begin.UnixNano(), b.Begin.UnixNano()) })
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, "RPC\tFOR\tSTAGE")
	for _, c := range list {
		spans := c.stages.Spans()
		at := cmp.Or(stage.Open(spans), "-")
		if part := stage.OpenPart(spans); part != "" {
			at += ": " + part
		}
		fmt.Fprintf(out, "%s\t%s\t%s\n", c.RPC, time.Since(c.Begin).Round(time.Millisecond), at)
	}
	_ = out.Flush() // the client may have disconnected
}
