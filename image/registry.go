package image

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/blobinfocache/none"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"
)

// answerTimeout is how long a registry may take to answer one request. A dial
// alone is given up after 30 s by the library.
const answerTimeout = 40 * time.Second

// nodeAuthFile is where a node's administrator puts its credentials.
const nodeAuthFile = "/etc/containers/auth.json"

// A registry is the origin of one image that is pulled, whichever mirror it then
// comes from: containers/image tries the mirrors of registries.conf in order,
// for the manifest and again for each blob.
type registry struct {
	name  string // the repository, with the registry, that was asked for
	src   types.ImageSource
	sys   *types.SystemContext
	limit time.Duration // for a byte to come; 0 means none
	files string        // directory with what the library must read from files; "" = none
}

// close ends connections.
func (r *registry) close() {
	r.src.Close() // which cannot fail for this transport
	r.forgetFiles()
}

// dial finds the image that name stands for.
func (s *Store) dial(ctx context.Context, name reference.Named, as Caller) (_ *registry, err error) {
	r := &registry{name: name.Name(), limit: s.now().ProgressTimeout}
	if r.sys, err = s.system(name, as); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.forgetFiles()
		}
	}()
	ref, err := docker.NewReference(name)
	if err != nil {
		return nil, fault.Invalid.Errorf("%w", err)
	}
	if err := s.takeCredentials(r, name, as.Namespace); err != nil {
		return nil, err
	}
	// Read the configuration anew: an edit counts from the next pull on.
	sysregistriesv2.InvalidateCache()
	conf, err := sysregistriesv2.FindRegistry(r.sys, name.Name())
	if err != nil {
		return nil, fault.Invalid.Errorf("registries.conf: %w", err)
	}
	if conf == nil {
		if conf, err = s.translateHosts(r, reference.Domain(name)); err != nil {
			return nil, err
		}
	}
	places := 1
	if conf != nil {
		if conf.Blocked {
			return nil, fault.Invalid.Errorf("registry %s is blocked by registries.conf", conf.Prefix)
		}
		places += len(conf.Mirrors)
	}
	err = r.bounded(ctx, places, func(ctx context.Context) error {
		r.src, err = ref.NewImageSource(ctx, r.sys)
		return err
	})
	if err != nil && places > 1 && isAway(err) && s.noMirrorHas(ctx, r, conf, name) {
		err = fault.NotFound.Errorf("no mirror has it, and the registry itself does not answer: %w", err)
	}
	if err != nil && fault.KindOf(err) == fault.Internal {
		if cerr := s.badCredentials(r.sys); cerr != nil {
			err = cerr
		}
	}
	return r, err
}

// badCredentials blames the file that credentials are taken from, if it cannot be
// read: the library's own error need not name it.
func (s *Store) badCredentials(sys *types.SystemContext) error {
	if sys.DockerAuthConfig != nil || sys.DockerBearerRegistryToken != "" || sys.AuthFilePath == "" {
		return nil
	}
	if err := checkCredentials(sys.AuthFilePath); err != nil {
		return fault.Invalid.Errorf("credentials in %s: %w", sys.AuthFilePath, err)
	}
	return nil
}

// isAway tells an error of a registry that cannot be reached from an answer.
func isAway(err error) bool {
	p, ok := errors.AsType[*PullError](err)
	return ok && p.Reason == RegistryUnavailable || statusOf(err) == 0 && isNetwork(err)
}

// noMirrorHas asks each mirror once more, because of several failures the library
// tells only the last one, which is that of the registry itself. It is true if
// all that there are answer that they do not have the image: then that is what
// is wrong, and on a node that has only its mirrors nothing else ever will be.
func (s *Store) noMirrorHas(ctx context.Context, r *registry, conf *sysregistriesv2.Registry, name reference.Named) bool {
	asked := false
	for _, m := range conf.Mirrors {
		only := sysregistriesv2.Registry{Prefix: conf.Prefix, Endpoint: m}
		if isDigested(name) && m.PullFromMirror == sysregistriesv2.MirrorByTagOnly || !isDigested(name) && (m.PullFromMirror == sysregistriesv2.MirrorByDigestOnly || conf.MirrorByDigestOnly) {
			continue
		}
		only.PullFromMirror = "" // which is for mirrors
		one := &registry{sys: new(types.SystemContext), limit: r.limit}
		*one.sys = *r.sys
		if reference.Domain(name) != m.Location {
			one.sys.DockerAuthConfig, one.sys.DockerBearerRegistryToken = nil, "" // they are for the registry itself
		}
		ref, err := docker.NewReference(name)
		if err == nil {
			err = s.configure(one, only, nil)
		}
		if err == nil {
			err = one.bounded(ctx, 1, func(ctx context.Context) error {
				one.src, err = ref.NewImageSource(ctx, one.sys)
				return err
			})
		}
		if err == nil {
			one.src.Close()
		}
		one.forgetFiles()
		if err == nil || statusOf(err) != http.StatusNotFound {
			return false
		}
		asked = true
	}
	return asked
}

// bounded runs one exchange with the registry, or one with each of n places.
func (r *registry) bounded(ctx context.Context, n int, exchange func(context.Context) error) error {
	limit := answerTimeout
	if r.limit > 0 {
		limit = min(limit, r.limit)
	}
	limit *= time.Duration(n)
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := exchange(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return &PullError{RegistryUnavailable, fmt.Errorf("no answer within %v", limit)}
	}
	return err
}

// open implements origin.
func (r *registry) open(ctx context.Context, b blob) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &patient{ctx: ctx, cancel: cancel, limit: r.limit}
	err := p.wait(func() (err error) {
		p.body, _, err = r.src.GetBlob(ctx, b.BlobInfo, none.NoCache)
		return err
	})
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return p, nil
}

// has implements origin.
func (r *registry) has(ctx context.Context, b blob) error {
	return r.bounded(ctx, 1, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		part, err := openRange(ctx, r.src, b.BlobInfo, 0, 1)
		cancel()
		if err == nil {
			part.Close()
		}
		return err
	})
}

// repository implements origin.
func (r *registry) repository() string { return r.name }

// A patient is a body that gives itself up when no byte comes for too long. The
// time between reads does not count: then it is the disk that is slow.
type patient struct {
	body   io.ReadCloser
	ctx    context.Context // of the request
	cancel context.CancelCauseFunc
	limit  time.Duration
	timer  *time.Timer
}

// Read implements io.Reader.
func (p *patient) Read(b []byte) (n int, err error) {
	err = p.wait(func() error {
		n, err = p.body.Read(b)
		return err
	})
	return n, err
}

func (p *patient) wait(work func() error) error {
	if p.limit > 0 {
		if p.timer == nil {
			p.timer = time.AfterFunc(p.limit, func() {
				p.cancel(&PullError{RegistryUnavailable, fmt.Errorf("no data for %v", p.limit)})
			})
		} else {
			p.timer.Reset(p.limit)
		}
		defer p.timer.Stop()
	}
	err := work()
	if err != nil && err != io.EOF && p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	return err
}

// Close ends the request.
func (p *patient) Close() error {
	p.cancel(nil)
	return p.body.Close()
}

// system is what the library needs to know to find and open name. Credentials are
// those of the request, else those in the namespace's file, else those of the
// node.
func (s *Store) system(name reference.Named, as Caller) (*types.SystemContext, error) {
	o := s.now()
	sys := &types.SystemContext{
		SystemRegistriesConfPath:    o.RegistriesConf,
		SystemRegistriesConfDirPath: o.RegistriesConfDir,
		RegistriesDirPath:           o.RegistriesDir,
		SignaturePolicyPath:         o.PolicyPath,
		AuthFilePath:                s.authFile(),
		BigFilesTemporaryDir:        s.layers.staging,
		DockerRegistryUserAgent:     "crisp",
	}
	policy, err := ofNamespace(o.PolicyDir, as.Namespace)
	if err != nil {
		return nil, err
	}
	if policy != "" {
		sys.SignaturePolicyPath = policy
	}
	credentials, err := ofNamespace(o.AuthDir, as.Namespace)
	if err != nil {
		return nil, err
	}
	if credentials != "" {
		sys.AuthFilePath = credentials
	}
	auth := as.Auth
	if auth == nil || name == nil {
		return sys, nil
	}
	if !sameRegistry(auth.ServerAddress, reference.Domain(name)) {
		return sys, nil
	}
	if auth.RegistryToken != "" {
		sys.DockerBearerRegistryToken = auth.RegistryToken
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

// sameRegistry tells whether credentials for address are for the registry host.
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
	hub := func(h string) bool {
		return h == "docker.io" || h == "index.docker.io" || h == "registry-1.docker.io"
	}
	return u.Host == host || hub(u.Host) && hub(host)
}

// authFile says where the node's credentials are; "" leaves it to the library.
func (s *Store) authFile() string {
	if file := s.now().AuthFile; file != "" {
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
