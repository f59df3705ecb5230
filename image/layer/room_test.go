package layer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/fault"
)

// The layers being unpacked share their memory. One for which none is left becomes a directory; that
// waits until it alone may take more, and a caller who leaves ends the wait.
func TestLayersShareMemory(t *testing.T) {
	const most = 3 * roomStep
	b := newBudget(2 * roomStep)
	first, second, third := b.room(ownRoom+most), b.room(ownRoom+most), b.room(ownRoom+most)
	if err := first.take(ownRoom + 2*roomStep); err != nil {
		t.Fatal(err)
	}
	if err := second.take(ownRoom); err != nil {
		t.Errorf("what a layer has in any case is refused: %v", err)
	}
	if err := second.take(1); err != errNoRoom {
		t.Errorf("error is %v with nothing left", err)
	}
	if err := second.wait(t.Context(), most); err != nil {
		t.Errorf("the only one that waits gets %v", err)
	}
	if err := second.wait(t.Context(), 1); !errors.Is(err, errManyFiles) || !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v past the most", err)
	}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if err := third.wait(ctx, ownRoom+1); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v for a caller who has left", err)
	}
	got := make(chan error)
	go func() { got <- third.wait(t.Context(), ownRoom+1) }()
	second.leave()
	if err := <-got; err != nil {
		t.Errorf("the next one gets %v", err)
	}
	third.leave()
	first.leave()
	if left := b.left.Load(); left != 2*roomStep || len(b.last) != 0 {
		t.Errorf("at the end %d bytes are left, of %d", left, 2*roomStep)
	}
}

// Layers are unpacked whatever the others take: as a directory if need be, and the memory is there
// again for the next.
func TestLayerWithoutMemoryBecomesDirectory(t *testing.T) {
	needRoot(t)
	shared := memory
	t.Cleanup(func() { memory = shared })
	memory = newBudget(0)
	var lines strings.Builder
	for i := range ownRoom / nodeCost {
		fmt.Fprintf(&lines, "- 644 %d x\n", i)
	}
	o := &origin{data: archiveOf(t, lines.String())}
	b := blob.Blob{}
	b.Digest, b.Size = digest.FromBytes(o.data), int64(len(o.data))
	_, ls := openEmpty(t)
	ls.erofs = true
	r, err := ls.unpacker(o, b, b.Digest, nil)(t.Context(), t.TempDir(), new(growth))
	if err != nil || r.EROFS || o.opened != 2 {
		t.Errorf("EROFS %v, fetched %d times, error %v", r.EROFS, o.opened, err)
	}
	if memory.left.Load() != 0 || len(memory.last) != 0 {
		t.Error("memory is held after the end")
	}
}

// A file cannot have more names of attributes than listxattr(2) returns, in either form.
func TestAttributesThatCannotBeListed(t *testing.T) {
	needRoot(t)
	hdr, _, _ := parseEntry("- 644 f x")
	hdr.PAXRecords = make(map[string]string)
	for i := range maxAttrNames/200 + 1 {
		hdr.PAXRecords[fmt.Sprintf("SCHILY.xattr.user.%0200d", i)] = "x"
	}
	if _, err := xattrs(hdr); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want one that blames the layer", err)
	}
}
