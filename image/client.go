package image

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// RegistrySettings say how registries are found and asked, and what is believed of them.
// The files and directories that they name are read anew for each pull.
type RegistrySettings struct {
	RegistriesConf    string   // registries.conf(5); "" means $CONTAINERS_REGISTRIES_CONF, then /etc/containers
	RegistriesConfDir string   // "" means the library's default directories
	HostsDirs         []string // directories of containerd's hosts.toml, for registries that registries.conf says nothing of
	RegistriesDir     string   // containers-registries.d(5): where signatures are; "" means the library's default directories

	PolicyPath string // policy.json(5); "" means $CONTAINERS_POLICY_JSON, then /etc/containers; if there is none, every image is accepted
	PolicyDir  string // <namespace>.json in it is that namespace's policy, instead of the node's; "" means none has its own
	AuthFile   string // containers-auth.json(5); "" means $REGISTRY_AUTH_FILE, then /etc/containers/auth.json, then the library's places
	AuthDir    string // <namespace>.json in it has that namespace's credentials, instead of the node's; "" means none has its own

	ProgressTimeout time.Duration // a pull that waits so long for a byte is given up; 0 means never
}

// A Caller is for whom an image is pulled. The zero value is the node itself.
type Caller struct {
	Namespace string // of Kubernetes: it may have a policy and credentials of its own
	Auth      *Auth  // nil means none
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

// A client asks registries for images. All its methods may be called at the same time.
type client struct {
	staging  string // directory for what the library must read from files
	log      *slog.Logger
	settings atomic.Pointer[RegistrySettings]
	quiet    quiet
	accesses accesses // who has pulled what is pulled by digest
}

// newClient returns a client that keeps files for the time of a pull below the directory
// staging.
func newClient(staging string, log *slog.Logger, o RegistrySettings) *client {
	c := &client{staging: staging, log: log}
	c.settings.Store(&o)
	return c
}

// reconfigure changes the settings, and logs what of the files that they name counts for
// nothing. Pulls under way go on with the old ones.
func (c *client) reconfigure(o RegistrySettings) {
	c.settings.Store(&o)
	c.reportHosts(o.HostsDirs)
}

// now are the settings in force.
func (c *client) now() *RegistrySettings { return c.settings.Load() }
