package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"reflect"
	"time"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/fault"
	"go.podman.io/image/v5/pkg/blobinfocache/none"
	"go.podman.io/image/v5/types"
)

// Bounds for resuming a download: any number of times while at least minProgress bytes came
// since the last time, else maxResumes times.
const (
	minProgress = 1 << 20
	maxResumes  = 3
)

// A download is a blob being fetched. It abandons a connection on which no byte arrives for too
// long; the time between reads does not count: then the disk is slow. A broken download is
// resumed at its offset, if the registry supports that, else read again.
type download struct {
	r    *Source
	blob blob.Blob
	ctx  context.Context // of all of it

	body   io.ReadCloser // nil without a request
	req    context.Context
	cancel context.CancelCauseFunc // ends req
	timer  *time.Timer

	offset int64  // bytes received
	tail   []byte // the last of them
	begun  int64  // offset at which body begins
	broken error  // the error that ended body
	tries  int    // since there was progress
	whole  bool   // the registry does not serve parts
}

// maxTail bounds the tail, in bytes.
const maxTail = 512

// openWhole sends a request for the blob. The registry may have even a blob with foreign URLs,
// and must have it if nothing else can be reached.
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
		w := newWatch(d.r.limit, longestRest, d.cancel, noData(d.r.limit)) // sending ends with the answer
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

// came records bytes read from the blob.
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

// resume opens the blob where it broke off: at the current place, and if that does not serve it,
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

// errOtherPart is the error for a registry that serves another part of a blob than requested.
var errOtherPart = errors.New("registry served another part of the blob")

// reopen asks for the rest of the blob, or for all of it if parts cannot be had. A part begins
// with the last bytes already received, because the library does not tell which part a registry
// says it has sent. Every second attempt is for the whole blob, in case a registry sends that
// anyway: the library then reads everything before the part, which may take too long.
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

// skip reads n bytes that were already received. They must equal want, unless that is nil.
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

// refusesRange reports whether err means that a registry does not serve the requested part of a
// blob, as opposed to nothing at the moment.
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

func (d *download) Close() error {
	d.end()
	return nil
}

// toEnd is the length that means everything to the end.
const toEnd = math.MaxUint64

// openRange opens a part of a blob; offset and length are in bytes. If a registry does not
// support ranges, the bytes before the part are read and discarded. Cancel ctx before closing
// the part, or closing reads the rest.
//
// The library has a method for this (GetBlobAt of its source of docker images), but its
// parameter has a type that only the library can name: struct{Offset, Length uint64}.
func openRange(ctx context.Context, src types.ImageSource, info types.BlobInfo, offset, length uint64) (io.ReadCloser, error) {
	method := reflect.ValueOf(src).MethodByName("GetBlobAt")
	if !method.IsValid() || len(info.URLs) > 0 {
		return nil, fault.Unavailable.Errorf("blob %s: parts of it cannot be fetched", info.Digest)
	}
	chunks := reflect.MakeSlice(method.Type().In(2), 1, 1)
	chunks.Index(0).FieldByName("Offset").SetUint(offset)
	chunks.Index(0).FieldByName("Length").SetUint(length)
	got := method.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(info), chunks})
	if err, _ := got[2].Interface().(error); err != nil {
		return nil, err
	}
	parts, errs := got[0].Interface().(chan io.ReadCloser), got[1].Interface().(chan error)
	for parts != nil || errs != nil {
		select {
		case part, ok := <-parts:
			if ok {
				return part, nil
			}
			parts = nil
		case err, ok := <-errs:
			if ok {
				return nil, err
			}
			errs = nil
		}
	}
	return nil, fault.Unavailable.Errorf("blob %s: no data from byte %d on", info.Digest, offset)
}
