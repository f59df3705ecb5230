package registry

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/docker"
)

// ErrPresent is the error of Dial for a tag that still means what is here.
var ErrPresent = errors.New("the image is here already")

// headTimeout is how long the registry may take to answer a HEAD request, before it gets the usual
// GET.
const headTimeout = 5 * time.Second

// askDigest asks the registry itself for the digest of the tag. That is HEAD, which Docker Hub does
// not count as a pull, with the same credentials as GET. The error is ErrPresent for a digest that
// is here, or that of a registry that limits requests: it must not get more of them. After nil the
// manifest is to be fetched, whatever the answer was.
func (r *Source) askDigest(ctx context.Context, p place) error {
	host, _, _ := strings.Cut(r.name, "/")
	unanswered := "HEAD " + host
	if r.present == nil || !p.direct || r.quiet.was(unanswered) {
		return nil
	}
	var d digest.Digest
	silent := false
	err := r.bounded(ctx, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		timer := time.AfterFunc(headTimeout, func() { cancel(errNoAnswer) })
		defer timer.Stop()
		// One that has us wait has answered.
		d, err = docker.GetDigest(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			GetConn:              func(string) { timer.Reset(headTimeout) },
			GotFirstResponseByte: func() { timer.Stop() },
		}), p.sys, p.ref)
		silent = err != nil && errors.Is(context.Cause(ctx), errNoAnswer)
		return err
	})
	r.quiet.note(unanswered, silent || isSilence(err))
	switch {
	case err == nil && r.present(d):
		return ErrPresent
	case statusOf(err) == http.StatusTooManyRequests:
		return err
	}
	return ctx.Err()
}
