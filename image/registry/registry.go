// Package registry finds images in registries and fetches their blobs.
//
// containers/image implements transport, authentication, registries.conf(5) and policy.json(5).
// This package adds containerd's hosts.toml, credentials and policies of a namespace, and
// patience. A name means one or more full names (Names). Each has places, the mirrors and the
// registry itself, which are tried one after another (Dial). The first that answers is the Source;
// what it later fails to serve, or serves damaged, the next one does. Each place is used at most
// once, so that a pull terminates. A place that does not answer is abandoned, and tried last for a
// while; a broken download is resumed at its offset; an expired token is renewed; a registry that
// asks us to wait is obeyed, within limits.
//
// The package tells the caller what a failed pull means (Failure), and knows nothing of what
// happens to the blobs.
package registry

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// Settings say how registries are found and used, and which images are trusted. The files and
// directories named here are read again for each pull.
type Settings struct {
	RegistriesConf    string   // registries.conf(5); "" means $CONTAINERS_REGISTRIES_CONF, then /etc/containers
	RegistriesConfDir string   // "" means the library's default directories
	HostsDirs         []string // directories of containerd's hosts.toml, for registries that registries.conf does not mention
	RegistriesDir     string   // containers-registries.d(5): where signatures are; "" means the library's default directories

	PolicyPath string // policy.json(5); "" means $CONTAINERS_POLICY_JSON, then /etc/containers; without a file every image is accepted
	PolicyDir  string // <namespace>.json there is that namespace's policy, instead of the node's; "" means none has its own
	AuthFile   string // containers-auth.json(5); "" means $REGISTRY_AUTH_FILE, then /etc/containers/auth.json, then the library's places
	AuthDir    string // <namespace>.json there has that namespace's credentials, instead of the node's; "" means none has its own

	ProgressTimeout time.Duration // a request that receives no byte for so long has failed; 0 means never
}

// A Caller is who wants an image. The zero value is the node itself.
type Caller struct {
	Namespace string // of Kubernetes: it may have its own policy and credentials
	Auth      *Auth  // nil means none
	Pod       string // the pod that the image is for, to be shown: "namespace/name"; "" = none
}

// Auth is what a caller knows about a registry's account. The zero value means
// none: then the namespace's or the node's own credentials apply.
type Auth struct {
	Username, Password string
	Auth               string // base64 of "user:password"; used if Username is empty
	IdentityToken      string // OAuth2 refresh token
	RegistryToken      string // bearer token, sent as it is
	ServerAddress      string // if not empty, the rest is for this registry only
}

// A Client pulls from registries. All its methods may be called concurrently.
type Client struct {
	staging  string // directory for what the library must read from files
	log      *slog.Logger
	settings atomic.Pointer[Settings]
	quiet    quiet
	accesses // pulls by digest that a registry has allowed
}

// New returns a client that keeps the files of a running pull below the directory staging.
func New(staging string, log *slog.Logger, o Settings) *Client {
	c := &Client{staging: staging, log: log}
	c.settings.Store(&o)
	return c
}

// Reconfigure changes the settings, and logs which entries of the files they name have no
// effect. Pulls under way keep the old ones.
func (c *Client) Reconfigure(o Settings) {
	c.settings.Store(&o)
	for _, text := range CheckHosts(o) {
		c.log.Warn("hosts.toml has what cannot be used", "err", text)
	}
}

// now returns the current settings.
func (c *Client) now() *Settings { return c.settings.Load() }
