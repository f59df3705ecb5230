package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"
)

// A place is where an image may be: a mirror, or the registry itself.
//
// The library would ask all places of registries.conf in one call. Here each is asked
// separately, so that one that does not answer takes no time from the others.
type place struct {
	location string // "" = as the library finds it by the image's name
	own      bool   // the registry itself
	direct   bool   // the registry itself, at the address in the image's name
	sys      *types.SystemContext
	ref      types.ImageReference
}

// findPlaces returns the places that may have the image, in the order in which they are to be
// asked: that of registries.conf, or else of a hosts.toml. Mirrors that did not answer in time
// lately come last.
func (c *Client) findPlaces(r *Source, name reference.Named) ([]place, error) {
	ref, err := docker.NewReference(name)
	if err != nil {
		return nil, fault.Invalid.Errorf("%w", err)
	}
	// Read the configuration again: an edit takes effect at the next pull.
	sysregistriesv2.InvalidateCache()
	conf, err := sysregistriesv2.FindRegistry(r.sys, name.Name())
	if err != nil {
		return nil, fault.Invalid.Errorf("registries.conf: %w", err)
	}
	var certs map[string]hostCerts
	translated := false
	if conf == nil {
		h, err := c.translateHosts(reference.Domain(name))
		if err != nil {
			return nil, err
		}
		if h != nil {
			conf, certs, translated = &h.conf, h.certs, true
		}
	}
	if conf == nil {
		return []place{{own: true, direct: true, sys: r.sys, ref: ref}}, nil
	}
	if conf.Blocked {
		return nil, fault.Invalid.Errorf("registry %s is blocked by registries.conf", conf.Prefix)
	}
	sources, err := conf.PullSourcesFromReference(name)
	if err != nil {
		return nil, fault.Invalid.Errorf("registries.conf: %w", err)
	}
	direct := sources[len(sources)-1].Reference.String() == name.String()
	if len(sources) == 1 && !translated {
		return []place{{own: true, direct: direct, sys: r.sys, ref: ref}}, nil
	}
	dir, err := r.makeFiles(c.staging)
	if err != nil {
		return nil, err
	}
	var places []place
	for i, source := range sources {
		p := place{location: source.Endpoint.Location, own: i == len(sources)-1, ref: ref, sys: new(types.SystemContext)}
		p.direct = p.own && direct
		*p.sys = *r.sys
		own := filepath.Join(dir, fmt.Sprint(i))
		only := sysregistriesv2.Registry{Prefix: conf.Prefix, Endpoint: source.Endpoint}
		only.PullFromMirror = "" // which is for mirrors
		if err := configure(p.sys, own, only, certs); err != nil {
			return nil, err
		}
		if host := reference.Domain(source.Reference); p.own && translated && host != reference.Domain(name) {
			if err := readdress(p.sys, own, host); err != nil {
				return nil, err
			}
		}
		places = append(places, p)
	}
	last := func(p place) int {
		if !p.own && c.quiet.was(p.location) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(places, func(a, b place) int { return last(a) - last(b) })
	return places, nil
}

// readdress makes the credentials of the request go to host, which is the same registry. The
// library uses credentials without a host for the host in the name only.
func readdress(sys *types.SystemContext, dir, host string) error {
	auth := sys.DockerAuthConfig
	if auth == nil {
		return nil
	}
	sys.DockerAuthConfig = nil // a token goes along without it
	if *auth == (types.DockerAuthConfig{}) {
		return nil
	}
	entry := map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(auth.Username + ":" + auth.Password))}
	if auth.IdentityToken != "" {
		entry["identitytoken"] = auth.IdentityToken
	}
	data, err := json.Marshal(map[string]any{"auths": map[string]any{host: entry}})
	if err != nil {
		return err
	}
	sys.AuthFilePath = filepath.Join(dir, "request.json")
	return os.WriteFile(sys.AuthFilePath, data, 0o600)
}

// next gives up the place at, for the reason why, and asks those that come after it, one after
// the other, until one has the image, or the registry says that it is here (ErrPresent). If none
// has, the error is the registry's own, and mentions the others too. Each place is in use at most
// once, so whoever asks again after each failure comes to an end.
func (r *Source) next(ctx context.Context, at int, why error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at != at {
		return nil // another caller was here first
	}
	if why != nil {
		r.failed[at] = why
	}
	for r.asked < len(r.places) {
		i := r.asked
		r.asked++
		found, err := r.ask(ctx, r.places[i], r.asked == len(r.places))
		if err == nil {
			r.src, r.at = found, i
			r.reached = r.reached || r.places[i].own
			r.used = append(r.used, found)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrPresent) {
			return err
		}
		r.failed[i] = err
	}
	return r.sumUp()
}

// attempts are what one request has done already to go on after a failure.
type attempts struct {
	renewed bool // the token
	paused  bool // when no place was left
}

// more prepares another attempt after err, which came from src, at the place at: with a new token,
// at the next place, or after a pause. An error means that no attempt is left.
func (a *attempts) more(ctx context.Context, r *Source, src types.ImageSource, at int, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if !a.renewed && statusOf(err) == http.StatusUnauthorized {
		a.renewed = true
		if r.renew(ctx, src) == nil {
			return nil
		}
	}
	last := r.next(ctx, at, err)
	if last == nil || a.paused || !isPassing(err) {
		return last
	}
	a.paused = true
	return pause(ctx)
}

// renew opens the place of src once more, with which it gives a new token, unless another caller
// has done so.
func (r *Source) renew(ctx context.Context, src types.ImageSource) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.src != src {
		return nil
	}
	found, err := r.ask(ctx, r.places[r.at], false)
	if err != nil {
		return err
	}
	r.src = found
	r.used = append(r.used, found)
	return nil
}

// ask asks one place for the image. The last one left gets a second chance.
func (r *Source) ask(ctx context.Context, p place, last bool) (src types.ImageSource, err error) {
	if err := r.askDigest(ctx, p); err != nil {
		return nil, err
	}
	for again := last; ; again = false {
		err = r.bounded(ctx, func(ctx context.Context) (err error) {
			src, err = p.ref.NewImageSource(ctx, p.sys)
			return err
		})
		r.quiet.note(p.location, isSilence(err) && !p.own)
		if err == nil || !again || !isPassing(err) {
			return src, err
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

// isSilence reports whether err cost the time that a place has to answer: its own, or the
// library's for a connection, a handshake or a name server.
func isSilence(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return errors.Is(err, errNoAnswer) || ok && timeout.Timeout()
}

// A mirrorError is why a mirror did not provide the image.
type mirrorError struct {
	location string
	err      error
}

func (e *mirrorError) Error() string { return fmt.Sprintf("[%s: %v]", e.location, public(e.err)) }

// errNowhere is the error of a pull for which no place is left.
var errNowhere = errors.New("there is no other place to ask")

// mayComeBack reports whether err is that of a place which may be there again later.
func mayComeBack(err error) bool { return err != nil && (isAway(err) || isBusy(statusOf(err))) }

// sumUp makes one error of those of all places. On a node that reaches only its mirrors, an
// image that none of them has does not exist, whatever the registry says: it will never answer.
func (r *Source) sumUp() error {
	var own error
	var mirrors []error
	for i, p := range r.places {
		switch err := r.failed[i]; {
		case err == nil:
		case p.own:
			own = err
		default:
			mirrors = append(mirrors, &mirrorError{p.location, err})
		}
	}
	if own == nil {
		return errors.Join(append(mirrors, errNowhere)...)
	}
	if len(mirrors) == 0 {
		return own
	}
	lacks := func(err error) bool {
		why := err.(*mirrorError).err
		return statusOf(why) == http.StatusNotFound || errors.Is(why, fault.NotFound)
	}
	if used := r.failed[max(r.at, 0)]; r.at >= 0 && !r.places[r.at].own && mayComeBack(used) && !mayComeBack(own) {
		// It may go on where it was: with another try, what has come already is kept.
		return withText(used, fmt.Sprintf("the registry itself has not given it either: %v", public(own)))
	}
	if !r.reached && isAway(own) && !slices.ContainsFunc(mirrors, func(err error) bool { return !lacks(err) }) {
		return fault.NotFound.Errorf("no mirror has it, and the registry itself does not answer: %w", own)
	}
	also := make([]string, len(mirrors))
	for i, err := range mirrors {
		also[i] = err.Error()
	}
	return withText(own, "mirrors have not given it either: "+strings.Join(also, " "))
}

// isAway reports whether err means that a registry cannot be reached, as opposed to an answer.
func isAway(err error) bool {
	p, ok := errors.AsType[*PullError](err)
	return ok && p.Reason == RegistryUnavailable || statusOf(err) == 0 && isNetwork(err)
}

// quietFor is how long a mirror that did not answer is asked after all others, and a registry that
// does not answer HEAD requests gets none.
const quietFor = time.Minute

// quiet are those that did not answer.
type quiet struct {
	mu sync.Mutex
	m  map[string]time.Time // until when; guarded by mu
}

// note remembers whether who was quiet.
func (q *quiet) note(who string, was bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(q.m, func(other string, until time.Time) bool { return other == who || now.After(until) })
	if was {
		if q.m == nil {
			q.m = make(map[string]time.Time)
		}
		q.m[who] = now.Add(quietFor)
	}
}

// was reports whether who was quiet lately.
func (q *quiet) was(who string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.Now().Before(q.m[who])
}
