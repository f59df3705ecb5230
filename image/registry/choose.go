package registry

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/image"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
)

// A Choice is the image of this platform among those that a name stands for.
type Choice struct {
	blob.Manifest
	Top    digest.Digest // of what the name stands for: a manifest, or a list of them
	Proofs []Proof       // for asking a policy later
}

// Choose finds the image of this platform at the first place that gives it. An image that the
// policy does not allow is a *PullError; for other errors, see Failure.
func (r *Source) Choose(ctx context.Context) (Choice, error) {
	var tries attempts
	for {
		src, at := r.current()
		c, img, err := r.chooseAt(ctx, src)
		if err == nil {
			err = r.bounded(ctx, func(ctx context.Context) error { return allow(ctx, r.sys, img) })
			if err == nil {
				c.Proofs = r.prove(ctx, img)
				return c, nil
			}
			if !isAway(err) && statusOf(err) == 0 {
				return Choice{}, err // what the policy says, it says of every place
			}
		}
		if err := tries.more(ctx, r, src, at, err); err != nil {
			return Choice{}, err
		}
	}
}

// chooseAt reads the manifest, or the one for this platform if it is a list.
func (r *Source) chooseAt(ctx context.Context, src types.ImageSource) (c Choice, img *image.UnparsedImage, err error) {
	var instance *digest.Digest
	for range blob.MaxNesting {
		img = image.UnparsedInstance(src, instance)
		data, kind, err := r.manifest(ctx, img)
		if err != nil {
			return Choice{}, nil, err
		}
		if c.Top == "" {
			if c.Top, err = manifest.Digest(data); err != nil {
				return Choice{}, nil, fault.Invalid.Errorf("manifest: %w", err)
			}
		}
		if !manifest.MIMETypeIsMultiImage(kind) {
			c.Manifest, err = blob.ReadManifest(data, kind)
			return c, img, err
		}
		if instance, err = blob.ChoosePlatform(data, kind, r.sys); err == nil {
			err = verifiable(*instance)
		}
		if err != nil {
			return Choice{}, nil, err
		}
	}
	return Choice{}, nil, fault.Invalid.Errorf("more than %d lists of manifests lie within each other", blob.MaxNesting)
}

// verifiable refuses the digest of a manifest that the library would never find to match: it
// calculates only sha256.
func verifiable(d digest.Digest) error {
	if a := d.Algorithm(); a != digest.SHA256 {
		return fault.Invalid.Errorf("manifest %s: only digests by sha256 are supported, not by %s", d, a)
	}
	return nil
}

// manifest reads the manifest of img and verifies it against the digest that was asked for. One
// that is damaged is fault.Unavailable.
func (r *Source) manifest(ctx context.Context, img *image.UnparsedImage) (data []byte, kind string, err error) {
	err = r.bounded(ctx, func(ctx context.Context) error {
		data, kind, err = img.Manifest(ctx)
		return err
	})
	switch {
	case err == nil:
		kind, err = blob.KindOf(data, kind)
	case ctx.Err() == nil && !isAway(err) && statusOf(err) == 0:
		err = fault.Unavailable.Errorf("%w", err) // the digest differs, or it breaks off
	}
	return data, kind, err
}

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
