package registry

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/crisp-cri/crisp/image/blob"
	"go.podman.io/image/v5/pkg/blobinfocache/none"
	"go.podman.io/image/v5/types"
)

// Bounds of how often a download is resumed: as long as minProgress bytes came since the last
// time, else maxResumes times.
const (
	minProgress = 1 << 20
	maxResumes  = 3
)

// A download is a blob on its way. It gives up a connection on which no byte comes for too
// long; the time between reads does not count: then the disk is slow. A download that breaks
// off is resumed where it was, if the registry can do that.
type download struct {
	r    *Source
	blob blob.Blob
	ctx  context.Context // of all of it

	body   io.ReadCloser // nil if there is none
	req    context.Context
	cancel context.CancelCauseFunc // ends req
	timer  *time.Timer

	offset int64 // bytes that came
	begun  int64 // offset at which body begins
	broken error // the error that ended body
	tries  int   // since there was progress
}

// openWhole sends a request for the blob.
func (d *download) openWhole(src types.ImageSource) error {
	return d.open(func(ctx context.Context) (body io.ReadCloser, err error) {
		body, _, err = src.GetBlob(ctx, d.blob.BlobInfo, none.NoCache)
		return body, err
	})
}

// open sends a request for the blob or the rest of it.
func (d *download) open(send func(context.Context) (io.ReadCloser, error)) (err error) {
	d.req, d.cancel = context.WithCancelCause(d.ctx)
	ctx := d.req
	if d.r.limit > 0 {
		w := newWatch(d.r.limit, d.cancel, noData(d.r.limit))
		defer w.stop()
		ctx = w.follow(ctx)
	}
	if d.body, err = send(ctx); err == nil {
		d.begun, d.timer = d.offset, nil
		return nil
	}
	if d.req.Err() != nil {
		err = context.Cause(d.req)
	}
	d.cancel(nil)
	return err
}

func noData(limit time.Duration) error {
	return &PullError{RegistryUnavailable, fmt.Errorf("no data for %v", limit)}
}

// Read implements io.Reader.
func (d *download) Read(p []byte) (int, error) {
	for {
		if d.broken != nil {
			if err := d.resume(); err != nil {
				return 0, err
			}
		}
		n, err := d.read(p)
		d.offset += int64(n)
		if err == nil || err == io.EOF {
			return n, err
		}
		if d.ctx.Err() != nil {
			return n, context.Cause(d.ctx)
		}
		d.broken = err
		if n > 0 {
			return n, nil
		}
	}
}

func (d *download) read(p []byte) (n int, err error) {
	if limit := d.r.limit; limit > 0 {
		if d.timer == nil {
			cancel := d.cancel // of this request
			d.timer = time.AfterFunc(limit, func() { cancel(noData(limit)) })
		} else {
			d.timer.Reset(limit)
		}
		defer d.timer.Stop()
	}
	n, err = d.body.Read(p)
	if err != nil && err != io.EOF && d.req.Err() != nil {
		err = context.Cause(d.req)
	}
	return n, err
}

// resume opens the blob where it broke off: at the place in use, and if that does not give it,
// at the next one.
func (d *download) resume() error {
	if d.offset-d.begun >= minProgress {
		d.tries = 0
	}
	d.end()
	for {
		src, at := d.r.current()
		if d.tries == maxResumes {
			if err := d.r.next(d.ctx, at, d.broken); err != nil {
				return err
			}
			d.tries = 0
			continue
		}
		d.tries++
		if err := pause(d.ctx); err != nil {
			return err
		}
		err := d.open(func(ctx context.Context) (io.ReadCloser, error) {
			return openRange(ctx, src, d.blob.BlobInfo, uint64(d.offset), toEnd)
		})
		if err == nil {
			d.broken = nil
			return nil
		}
	}
}

// end ends the request under way.
func (d *download) end() {
	if d.body != nil {
		d.cancel(nil) // first: closing may read the rest
		d.body.Close()
		d.body = nil
	}
}

// Close implements io.Closer.
func (d *download) Close() error {
	d.end()
	return nil
}
