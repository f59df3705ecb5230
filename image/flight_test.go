package image

import (
	"context"
	"testing"

	"github.com/crisp-cri/crisp/image/progress"
)

// A pull is shown with the pod that it is for from its first moment: its work may be ahead of the
// caller that began it.
func TestPullShowsWhoBeganIt(t *testing.T) {
	var fs flights
	fs.start(t.Context())
	for range 20_000 {
		_, err := fs.join(t.Context(), journey{"key", "image", "default/web"}, func(context.Context, *progress.Pull) (Image, error) {
			if list := fs.tracker.List(); len(list) != 1 || list[0].Waiters != 1 || len(list[0].For) != 1 {
				t.Errorf("a pull that begins: %+v", list)
			}
			return Image{}, nil
		})
		if err != nil || t.Failed() {
			t.Fatal(err)
		}
	}
	fs.wait()
}
