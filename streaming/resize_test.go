package streaming

import (
	"io"
	"strings"
	"testing"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// A client must not be able to fill crispd's memory: an endless terminal size is read
// and discarded.
func TestEndlessSizeIsNotKept(t *testing.T) {
	endless := &widest{r: io.MultiReader(
		strings.NewReader(`{"Width":80,"Height":24}{"Width":`), io.LimitReader(digits{}, 32<<20))}
	sizes := make(chan remotecommand.TerminalSize, 4)
	readSizes(t.Context(), endless, sizes)
	if got := <-sizes; got.Width != 80 || got.Height != 24 {
		t.Errorf("the first size is %+v, want 80 by 24", got)
	}
	if got, more := <-sizes; more {
		t.Errorf("the endless one is %+v", got)
	}
	if endless.most > 64<<10 {
		t.Errorf("the reader was asked for %d bytes at once: it is kept in memory", endless.most)
	}
	if n, _ := endless.Read(make([]byte, 1)); n != 0 {
		t.Error("not all was read: the connection's other channels would stop")
	}
}

// widest records the largest size that it is asked for.
type widest struct {
	r    io.Reader
	most int
}

func (w *widest) Read(p []byte) (int, error) {
	w.most = max(w.most, len(p))
	return w.r.Read(p)
}

type digits struct{}

func (digits) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '1'
	}
	return len(p), nil
}
