package streaming

import (
	"bytes"
	"context"
	"io"
	"testing"
	"testing/synctest"
)

// Whoever may forward ports can open many connections whose program reads nothing. What crispd
// reads of all of them together is bounded, each still gets its data, and none keeps its share.
func TestAllThatIsReadAheadSharesABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams = 300
		begin := allAhead.Load()
		ctx, end := context.WithCancel(t.Context())
		var all []*readAhead
		for range streams {
			r := newReadAhead()
			all = append(all, r)
			go r.fill(bytes.NewReader(make([]byte, maxAhead)), func(room <-chan struct{}) bool {
				select {
				case <-room:
					return true
				case <-ctx.Done():
					return false
				}
			})
		}
		synctest.Wait()
		kept := 0
		for _, r := range all {
			kept += len(r.buf)
		}
		if most := maxAllAhead + streams*freeAhead; kept > most || int64(kept) != allAhead.Load()-begin {
			t.Errorf("%d bytes are read ahead and %d counted, want at most %d", kept, allAhead.Load()-begin, most)
		}
		for _, r := range all[streams/2:] {
			if b, err := io.ReadAll(r); len(b) != maxAhead || err != nil {
				t.Fatalf("a reader got %d bytes, %v; want %d", len(b), err, maxAhead)
			}
		}
		for _, r := range all {
			r.drop()
		}
		end()
		synctest.Wait()
		if got := allAhead.Load(); got != begin {
			t.Errorf("%d bytes are counted after the end", got-begin)
		}
	})
}
