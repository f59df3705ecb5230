package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/periodic"
)

// pollEvery is the kubelet's --http-check-frequency.
const pollEvery = 20 * time.Second

// A URL is a manifest on a web server. Polls are conditional if the server has sent an ETag or
// Last-Modified.
type URL struct {
	URL    string
	Header http.Header // of each request
	Decode Decode
	Copies Copies
	Every  time.Duration // between polls; 0 means 20 s
	Log    *slog.Logger

	etag, modified string
	last           *File // the last file sent; nil before the first
}

// requestTimeout bounds a request. A server that accepts a connection but never answers counts as
// down.
const requestTimeout = 30 * time.Second

// Run sends an Update whenever the answer has changed, until ctx ends. While the server is down the
// objects stay as they are; at the start of the agent they come from the copy. Without a copy Run
// sends nothing, because a manifest that cannot be read must not end a pod.
func (u *URL) Run(ctx context.Context, out chan<- Update) {
	for ctx.Err() == nil {
		if f, differs := u.poll(ctx); differs && ctx.Err() == nil {
			u.last = &f
			select {
			case out <- Update{manifest.SourceHTTP, []File{f}}:
			case <-ctx.Done():
			}
		}
		periodic.Pause(ctx, cmp.Or(u.Every, pollEvery))
	}
}

func (u *URL) poll(ctx context.Context) (f File, differs bool) {
	data, unchanged, err := u.get(ctx)
	if unchanged {
		if u.last.Err == nil {
			return File{}, false
		}
		f := *u.last // the server is back with the same manifest
		f.Err = nil
		return f, true
	}
	f = u.Copies.load(u.URL, data, err, u.last, u.Decode)
	if f.Err != nil && err == nil {
		u.etag, u.modified = "", "" // "not modified" must refer to a good version
	}
	switch {
	case f.Err == nil:
		return f, true
	case u.last == nil:
		u.Log.WarnContext(ctx, "manifest URL could not be read", "err", f.Err)
		copied, err := u.Copies.get(u.URL)
		return f, err == nil && copied != nil
	case u.last.Err != nil && u.last.Err.Error() == f.Err.Error():
		return f, false
	}
	return f, true
}

func (u *URL) get(ctx context.Context) (data []byte, unchanged bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.URL, nil)
	if err != nil {
		return nil, false, err
	}
	maps.Copy(req.Header, u.Header)
	if u.last != nil && u.etag != "" {
		req.Header.Set("If-None-Match", u.etag)
	}
	if u.last != nil && u.modified != "" {
		req.Header.Set("If-Modified-Since", u.modified)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotModified && u.last != nil:
		return nil, true, nil
	case resp.StatusCode != http.StatusOK:
		return nil, false, fmt.Errorf("%s: %s", u.URL, resp.Status)
	}
	data, err = io.ReadAll(io.LimitReader(resp.Body, maxSize+1))
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("%s: %w", u.URL, err)
	case len(data) > maxSize:
		return nil, false, fmt.Errorf("%s: more than %d bytes", u.URL, maxSize)
	case len(data) == 0: // as in the kubelet, an empty answer does not mean "no pods"
		return nil, false, errors.New(u.URL + ": the answer is empty")
	}
	u.etag, u.modified = resp.Header.Get("ETag"), resp.Header.Get("Last-Modified")
	return data, false, nil
}
