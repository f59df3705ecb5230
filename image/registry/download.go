package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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
// off is resumed where it was, if the registry can do that, else read once more.
type download struct {
	r    *Source
	blob blob.Blob
	ctx  context.Context // of all of it

	body   io.ReadCloser // nil if there is none
	req    context.Context
	cancel context.CancelCauseFunc // ends req
	timer  *time.Timer

	offset int64  // bytes that came
	tail   []byte // the last of them
	begun  int64  // offset at which body begins
	broken error  // the error that ended body
	tries  int    // since there was progress
	whole  bool   // parts cannot be had
}

// maxTail bounds the tail that is kept, in bytes.
const maxTail = 512

// openWhole sends a request for the blob. One that its manifest says is to come from elsewhere may
// be in the registry all the same, as it has to be where nothing else is reached.
func (d *download) openWhole(src types.ImageSource) error {
	get := func(info types.BlobInfo) error {
		return d.open(func(ctx context.Context) (body io.ReadCloser, err error) {
			body, _, err = src.GetBlob(ctx, info, none.NoCache)
			return body, err
		})
	}
	info := d.blob.BlobInfo
	err := get(info)
	if err != nil && len(info.URLs) > 0 && d.ctx.Err() == nil {
		info.URLs = nil
		if get(info) == nil {
			return nil
		}
	}
	return err
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
		d.came(p[:n])
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

// came notes what was read of the blob.
func (d *download) came(p []byte) {
	d.offset += int64(len(p))
	if len(p) >= maxTail {
		d.tail = append(d.tail[:0], p[len(p)-maxTail:]...)
		return
	}
	d.tail = append(d.tail, p...)
	d.tail = d.tail[max(0, len(d.tail)-maxTail):]
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
	renewed := false
	for {
		src, at := d.r.current()
		if d.tries == maxResumes {
			if err := d.r.next(d.ctx, at, d.broken); err != nil {
				return err
			}
			d.tries, d.whole = 0, false
			continue
		}
		d.tries++
		if err := pause(d.ctx); err != nil {
			return err
		}
		err := d.reopen(src)
		if err == nil {
			d.broken = nil
			return nil
		}
		if !renewed && statusOf(err) == http.StatusUnauthorized {
			renewed = true
			if d.r.renew(d.ctx, src) == nil {
				d.tries--
			}
		}
	}
}

// errOtherPart is the error of a registry that gives another part of a blob than was asked for.
var errOtherPart = errors.New("another part of the blob came")

// reopen asks for the rest of the blob, or for all of it if parts cannot be had. A part begins
// with the last bytes that are there: the library does not tell which part a registry says that
// it has sent. Every second attempt is for the whole blob, in case that is what a registry sends
// anyway: the library then reads what comes before the part, which may take too long.
func (d *download) reopen(src types.ImageSource) error {
	if !d.whole && d.tries%2 == 1 {
		from := d.offset - int64(len(d.tail))
		err := d.open(func(ctx context.Context) (io.ReadCloser, error) {
			return openRange(ctx, src, d.blob.BlobInfo, uint64(from), toEnd)
		})
		if err == nil {
			err = d.skip(int64(len(d.tail)), d.tail)
		}
		if err == nil || !refusesRange(err) {
			return err
		}
		d.whole = true
	}
	if err := d.openWhole(src); err != nil {
		return err
	}
	return d.skip(d.offset, nil)
}

// skip reads n bytes that are there already. They must be want, if that is not nil.
func (d *download) skip(n int64, want []byte) error {
	buf := make([]byte, min(n, blob.ChunkSize))
	for n > 0 {
		m, err := d.read(buf[:min(n, int64(len(buf)))])
		n -= int64(m)
		if want != nil {
			if !bytes.HasPrefix(want, buf[:m]) {
				err = errOtherPart
			} else {
				want = want[m:]
			}
		}
		if err != nil && (n > 0 || err != io.EOF) {
			d.end()
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// refusesRange reports whether err is of a registry that does not give parts of a blob as it was
// asked to, as opposed to one that gives nothing now.
func refusesRange(err error) bool {
	switch code := statusOf(err); code {
	case 0:
		return !isAway(err)
	case http.StatusUnauthorized, http.StatusTooManyRequests:
		return false
	default:
		return code < http.StatusInternalServerError || code == http.StatusNotImplemented
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
