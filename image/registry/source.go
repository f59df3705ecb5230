package registry

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/types"
)

// nodeAuthFile is where a node's administrator puts its credentials.
const nodeAuthFile = "/etc/containers/auth.json"

// A Source is the origin of one image that is pulled. It is the first place that answers, a
// mirror or the registry itself; what that place does not give later on, for instance a layer,
// or gives damaged, the next one does.
type Source struct {
	name  string               // the repository, with the registry, that was asked for
	sys   *types.SystemContext // for the registry itself
	limit time.Duration        // for a byte to come; 0 means none
	files string               // directory with what the library must read from files; "" = none
	quiet *quiet
	log   *slog.Logger

	places  []place                  // in the order in which they are asked
	present func(digest.Digest) bool // see Dial; nil = no

	mu      sync.Mutex            // held while the next place is asked
	src     types.ImageSource     // of the place in use; guarded by mu
	at      int                   // the place in use; -1 = none yet; guarded by mu
	asked   int                   // how many places were asked; guarded by mu
	reached bool                  // the registry itself was in use; guarded by mu
	failed  []error               // why places have not given all that they were asked for; guarded by mu
	gave    map[digest.Digest]int // which place each blob came from last; guarded by mu
	used    []types.ImageSource   // guarded by mu; readers may still use them
}

// Close ends connections, and removes the files that were kept for the source.
func (r *Source) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, src := range r.used {
		src.Close() // which cannot fail for this transport
	}
	if r.files != "" {
		os.RemoveAll(r.files) // Open removes leftovers
		r.files = ""
	}
}

// current is the place in use.
func (r *Source) current() (src types.ImageSource, at int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.src, r.at
}

// Dial finds the image that name stands for, for the caller as, and asks the places that may
// have it until one answers. Close the source when the image is there.
//
// If present is not nil and the registry itself is asked, it is first asked for the digest of name
// only. The error is ErrPresent if present returns true for that. For other errors, see Failure.
func (c *Client) Dial(ctx context.Context, name reference.Named, as Caller, present func(digest.Digest) bool) (_ *Source, err error) {
	if d, ok := name.(reference.Digested); ok {
		if err := verifiable(d.Digest()); err != nil {
			return nil, err
		}
	}
	r := &Source{name: name.Name(), at: -1, gave: make(map[digest.Digest]int), limit: c.now().ProgressTimeout, quiet: &c.quiet, log: c.log}
	if r.sys, err = c.system(name, as); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if err := c.takeCredentials(r, name, as.Namespace); err != nil {
		return nil, err
	}
	if r.places, err = c.findPlaces(r, name); err != nil {
		return nil, err
	}
	r.failed = make([]error, len(r.places))
	r.present = present
	if err := r.next(ctx, -1, nil); err != nil {
		return nil, r.explainDial(err)
	}
	r.present = nil // what comes next is part of that image
	return r, nil
}

// explainDial adds to the reason why no place has given the image. It blames the credentials file,
// if that cannot be read: the library's own error may not name it.
func (r *Source) explainDial(err error) error {
	file := r.sys.AuthFilePath
	if errors.Is(err, ErrPresent) || fault.KindOf(err) != fault.Internal || file == "" ||
		r.sys.DockerAuthConfig != nil || r.sys.DockerBearerRegistryToken != "" {
		return err
	}
	if cerr := checkCredentials(file); cerr != nil {
		return fault.Invalid.Errorf("credentials in %s: %w", file, cerr)
	}
	return err
}

// Open implements blob.Origin.
func (r *Source) Open(ctx context.Context, b blob.Blob) (io.ReadCloser, error) {
	var tries attempts
	for {
		src, at := r.current()
		d := &download{r: r, blob: b, ctx: ctx}
		err := d.openWhole(src)
		if err == nil {
			r.mu.Lock()
			r.gave[b.Digest] = at
			r.mu.Unlock()
			return d, nil
		}
		if err := tries.more(ctx, r, src, at, err); err != nil {
			return nil, err
		}
	}
}

// Reject implements blob.Origin. It gives up the place that gave the blob.
func (r *Source) Reject(ctx context.Context, b blob.Blob, why error) error {
	r.mu.Lock()
	at := r.gave[b.Digest]
	r.mu.Unlock()
	return r.next(ctx, at, why)
}

// Has implements blob.Origin.
func (r *Source) Has(ctx context.Context, b blob.Blob) error {
	return r.bounded(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		src, _ := r.current()
		part, err := openRange(ctx, src, b.BlobInfo, 0, 1)
		cancel()
		if err == nil {
			part.Close()
		}
		return err
	})
}

// Place returns the place in use, as registries.conf names it, else the registry's host; and
// whether it is a mirror.
func (r *Source) Place() (location string, mirror bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.places[r.at]
	if p.location == "" {
		host, _, _ := strings.Cut(r.name, "/")
		return host, false
	}
	return p.location, !p.own
}

// Repository implements blob.Origin.
func (r *Source) Repository() string { return r.name }

// system returns the settings with which the library finds and opens name. The credentials are
// those of the request, else those in the namespace's file, else those of the node.
func (c *Client) system(name reference.Named, as Caller) (*types.SystemContext, error) {
	o := c.now()
	sys := &types.SystemContext{
		SystemRegistriesConfPath:    o.RegistriesConf,
		SystemRegistriesConfDirPath: o.RegistriesConfDir,
		RegistriesDirPath:           o.RegistriesDir,
		SignaturePolicyPath:         o.PolicyPath,
		AuthFilePath:                c.authFile(),
		BigFilesTemporaryDir:        c.staging,
		DockerRegistryUserAgent:     "crisp",
	}
	policy, err := ofNamespace(o.PolicyDir, as.Namespace)
	if err != nil {
		return nil, err
	}
	sys.SignaturePolicyPath = cmp.Or(policy, sys.SignaturePolicyPath)
	credentials, err := ofNamespace(o.AuthDir, as.Namespace)
	if err != nil {
		return nil, err
	}
	sys.AuthFilePath = cmp.Or(credentials, sys.AuthFilePath)
	auth := as.Auth
	if name == nil {
		return sys, nil
	}
	if err := checkRegistries(sys); err != nil {
		return nil, err
	}
	if auth == nil || !sameRegistry(auth.ServerAddress, reference.Domain(name)) {
		return sys, readable(sys.AuthFilePath)
	}
	if auth.RegistryToken != "" {
		sys.DockerBearerRegistryToken = auth.RegistryToken
		sys.DockerAuthConfig = &types.DockerAuthConfig{} // or the library would give the token to mirrors too
		return sys, nil
	}
	user, password := auth.Username, auth.Password
	if user == "" && auth.Auth != "" {
		plain, err := base64.StdEncoding.DecodeString(auth.Auth)
		if err != nil {
			return nil, fault.Invalid.Errorf("auth is not base64") // and it is a secret
		}
		var ok bool
		if user, password, ok = strings.Cut(string(plain), ":"); !ok {
			return nil, fault.Invalid.Errorf("auth is not user:password")
		}
		password = strings.TrimRight(password, "\x00")
	}
	if user != "" || auth.IdentityToken != "" {
		sys.DockerAuthConfig = &types.DockerAuthConfig{Username: user, Password: password, IdentityToken: auth.IdentityToken}
	}
	return sys, nil
}

// sameRegistry reports whether credentials for address are for the registry host.
// An address may be a host or a URL; Docker Hub has several.
func sameRegistry(address, host string) bool {
	if address == "" {
		return true
	}
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	return u.Host == host || isHub(u.Host) && isHub(host)
}

// isHub reports whether a host is Docker Hub, which has several.
func isHub(host string) bool {
	return host == "docker.io" || host == "index.docker.io" || host == "registry-1.docker.io"
}

// authFile says where the node's credentials are; "" leaves it to the library.
func (c *Client) authFile() string {
	if file := c.now().AuthFile; file != "" {
		return file
	}
	if path := os.Getenv("REGISTRY_AUTH_FILE"); path != "" {
		return path
	}
	if _, err := os.Stat(nodeAuthFile); err == nil || !errors.Is(err, os.ErrNotExist) {
		return nodeAuthFile
	}
	return ""
}
