package registry

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"
)

// A hostsFile is the content of containerd's hosts.toml for a registry, translated to
// registries.conf(5).
type hostsFile struct {
	conf     sysregistriesv2.Registry // without its prefix
	certs    map[string]hostCerts     // by host:port
	problems []string                 // settings without a translation, by key
}

// hostCerts are the TLS files for one host.
type hostCerts struct {
	ca     []string
	client [][2]string // certificate and key, which may be one file
}

// A hostTable is a table of hosts.toml: the top-level one, which is about the registry itself,
// or a [host."URL"]. toml.MetaData.Undecoded finds the keys that are missing here.
type hostTable struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   bool           `toml:"skip_verify"`
	OverridePath bool           `toml:"override_path"`
	Header       map[string]any `toml:"header"`
	DialTimeout  string         `toml:"dial_timeout"`
}

// findHosts returns the directory for a registry: as in containerd, the one for its host and
// port, or _default.
func findHosts(dirs []string, domain string) string {
	names := []string{domain}
	if host, port, err := net.SplitHostPort(domain); err == nil {
		names = []string{host + "_" + port + "_", domain}
	}
	for _, dir := range dirs {
		for _, name := range append(names, "_default") {
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				return path
			}
		}
	}
	return ""
}

// translateHosts reads the hosts.toml for a registry; without one it returns nil. The file is read
// for each pull.
func (c *Client) translateHosts(domain string) (*hostsFile, error) {
	dir := findHosts(c.now().HostsDirs, domain)
	if dir == "" {
		return nil, nil
	}
	h, err := readHosts(filepath.Join(dir, "hosts.toml"), domain)
	if errors.Is(err, fs.ErrNotExist) {
		certs, err := certFiles(dir)
		if err != nil || len(certs.ca)+len(certs.client) == 0 {
			return nil, err
		}
		h = &hostsFile{conf: sysregistriesv2.Registry{Endpoint: sysregistriesv2.Endpoint{Location: domain}}, certs: map[string]hostCerts{domain: certs}}
	}
	if err != nil && h == nil {
		return nil, fault.Invalid.Errorf("%w", err)
	}
	h.conf.Prefix = domain
	return h, nil
}

// readHosts reads the hosts.toml of a registry.
func readHosts(path, domain string) (*hostsFile, error) {
	data, err := regular.ReadFile(path, regular.MaxConfig)
	if err != nil {
		return nil, err
	}
	var t struct {
		Server string `toml:"server"`
		hostTable
		Hosts map[string]hostTable `toml:"host"`
	}
	meta, err := toml.Decode(string(data), &t)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	h := &hostsFile{certs: map[string]hostCerts{}}
	for _, key := range meta.Undecoded() {
		h.problem(key.String(), "it is not known")
	}
	dir := filepath.Dir(path)
	// Hosts are tried in the order of their tables.
	seen := map[string]bool{}
	for _, key := range meta.Keys() {
		if len(key) < 2 || key[0] != "host" || seen[key[1]] {
			continue
		}
		seen[key[1]] = true
		if host, ok := h.endpoint(domain, key[:2].String(), key[1], t.Hosts[key[1]], dir, false); ok {
			host.NamespaceProxy = domain // the parameter ns, which containerd sends too
			h.conf.Mirrors = append(h.conf.Mirrors, host)
		}
	}
	own, ok := h.endpoint(domain, "server", cmp.Or(t.Server, "https://"+domain), t.hostTable, dir, true)
	if !ok {
		own = sysregistriesv2.Endpoint{Location: domain}
	}
	h.conf.Endpoint = own
	return h, nil
}

func (h *hostsFile) problem(key, format string, args ...any) {
	h.problems = append(h.problems, key+": "+fmt.Sprintf(format, args...))
}

// endpoint translates one table. A mirror whose table cannot be obeyed is not used at all; the
// registry itself (own) is used as usual.
func (h *hostsFile) endpoint(domain, key, address string, t hostTable, dir string, own bool) (e sysregistriesv2.Endpoint, ok bool) {
	at := func(name string) string {
		if own {
			return name
		}
		return key + "." + name
	}
	before := len(h.problems)
	if len(t.Header) > 0 {
		h.problem(at("header"), "headers cannot be sent")
	}
	location, plain, err := locationOf(address, t.OverridePath)
	if err != nil {
		h.problem(key, "%v", err)
	}
	if isHub(location) && isHub(domain) {
		location = domain // the library has its own name for that location
	}
	certs, err := certsOf(t, dir)
	if err != nil {
		h.problem(key, "%v", err)
	}
	failed := len(h.problems) > before
	if t.DialTimeout != "" {
		h.problem(at("dial_timeout"), "it is 30 s")
	}
	can := func(what string) bool {
		return len(t.Capabilities) == 0 || slices.ContainsFunc(t.Capabilities, func(c string) bool { return strings.EqualFold(c, what) })
	}
	pull, resolve := can("pull"), can("resolve")
	switch {
	case own && !(pull && resolve):
		h.problem("capabilities", "the registry itself is asked for all, after the hosts")
	case !own && resolve && !pull:
		h.problem(at("capabilities"), "a host that resolves must also pull; it is not asked")
		failed = true
	case !own && !pull:
		return e, false // for pushes: not used
	case !own && !resolve:
		e.PullFromMirror = sysregistriesv2.MirrorByDigestOnly
	}
	if failed {
		return e, false
	}
	if len(certs.ca)+len(certs.client) > 0 {
		host, _, _ := strings.Cut(location, "/")
		h.certs[host] = certs
	}
	e.Location, e.Insecure = location, plain || t.SkipVerify
	return e, true
}

// locationOf returns the address of a host in the form of registries.conf(5). There the API is
// always below /v2 of the host, and what follows is part of the names. plain is true for a host
// without TLS.
//
// containerd appends /v2 to an address that does not end with it, unless override says that the
// address is the API's.
func locationOf(address string, override bool) (location string, plain bool, err error) {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", false, fmt.Errorf("%q is not the address of a registry", address)
	}
	if strings.Contains(u.Host, "[") {
		return "", false, fmt.Errorf("%q: the library knows registries by name or IPv4 address only", address)
	}
	api := path.Clean("/" + u.Path)
	if !override && !strings.HasSuffix(api, "/v2") || api == "/" {
		api = path.Join(api, "v2")
	}
	below, ok := strings.CutPrefix(api, "/v2")
	switch {
	case ok && (below == "" || below[0] == '/'):
	case override:
		return "", false, fmt.Errorf("path %s: with override_path it must begin with /v2", api)
	default:
		return "", false, fmt.Errorf("path %s: without override_path there cannot be one, unless it begins with /v2", path.Clean(u.Path))
	}
	host := u.Host
	if u.Scheme == "http" && u.Port() == "" {
		host += ":80" // the library would ask for 443 first
	}
	return host + below, u.Scheme == "http", nil
}

// certsOf reads ca, a file or a list of files, and client: a file with both, a list of such
// files, or a list of pairs.
func certsOf(t hostTable, dir string) (c hostCerts, err error) {
	abs := func(path string) string {
		if filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(dir, path)
	}
	list := func(v any) []any {
		switch v := v.(type) {
		case nil:
			return nil
		case []any:
			return v
		}
		return []any{v}
	}
	for _, v := range list(t.CA) {
		path, ok := v.(string)
		if !ok {
			return c, fmt.Errorf("ca: want the path of a file or a list of them")
		}
		c.ca = append(c.ca, abs(path))
	}
	for _, v := range list(t.Client) {
		pair := list(v)
		if len(pair) == 1 {
			pair = append(pair, pair[0])
		}
		if len(pair) != 2 {
			return c, fmt.Errorf("client: want files, or pairs of them")
		}
		cert, ok1 := pair[0].(string)
		key, ok2 := pair[1].(string)
		if !ok1 || !ok2 {
			return c, fmt.Errorf("client: want files, or pairs of them")
		}
		c.client = append(c.client, [2]string{abs(cert), abs(cmp.Or(key, cert))})
	}
	return c, nil
}

// certFiles finds the TLS files of a registry in a directory without a hosts.toml, by Docker's
// names, as containerd does: authorities are *.crt, certificates *.cert, and their keys *.key,
// or in the same file.
func certFiles(dir string) (c hostCerts, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return c, err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		switch base, isCert := strings.CutSuffix(path, ".cert"); {
		case f.IsDir():
		case strings.HasSuffix(path, ".crt"):
			c.ca = append(c.ca, path)
		case isCert:
			key := base + ".key"
			if _, err := os.Stat(key); errors.Is(err, fs.ErrNotExist) {
				key = path
			}
			c.client = append(c.client, [2]string{path, key})
		}
	}
	return c, nil
}

// usualCerts are the directories in which the library looks for the TLS files of a host, unless
// it is given one.
var usualCerts = []string{"/etc/containers/certs.d", "/etc/docker/certs.d"}

// configure makes sys use conf for names below its prefix. The library reads only files: they
// are written to dir.
func configure(sys *types.SystemContext, dir string, conf sysregistriesv2.Registry, certs map[string]hostCerts) error {
	helpers, err := sysregistriesv2.CredentialHelpers(sys)
	if err != nil {
		return fault.Invalid.Errorf("registries.conf: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := toml.NewEncoder(&text).Encode(sysregistriesv2.V2RegistriesConf{Registries: []sysregistriesv2.Registry{conf}, CredentialHelpers: helpers}); err != nil {
		return err
	}
	sys.SystemRegistriesConfPath = filepath.Join(dir, "registries.conf")
	sys.SystemRegistriesConfDirPath = filepath.Join(dir, "none")
	if err := os.WriteFile(sys.SystemRegistriesConfPath, text.Bytes(), 0o600); err != nil {
		return err
	}
	if len(certs) == 0 {
		return nil
	}
	sys.DockerPerHostCertDirPath = filepath.Join(dir, "certs.d")
	host, _, _ := strings.Cut(conf.Location, "/")
	return linkCerts(filepath.Join(sys.DockerPerHostCertDirPath, host), host, certs[host])
}

// linkCerts makes the directory of a host's files as the library expects it: links, to c or to
// the host's usual files.
func linkCerts(dir, host string, c hostCerts) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	link := func(target, name string) error {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	}
	files := slices.Clone(c.ca)
	for _, pair := range c.client {
		files = append(files, pair[:]...)
	}
	if err := readable(files...); err != nil {
		return err
	}
	for i, path := range c.ca {
		if err := link(path, fmt.Sprintf("%d.crt", i)); err != nil {
			return err
		}
	}
	for i, pair := range c.client {
		if err := errors.Join(link(pair[0], fmt.Sprintf("%d.cert", i)), link(pair[1], fmt.Sprintf("%d.key", i))); err != nil {
			return err
		}
	}
	if len(c.ca)+len(c.client) > 0 {
		return nil
	}
	for _, usual := range usualCerts {
		files, err := os.ReadDir(filepath.Join(usual, host))
		if err != nil {
			continue
		}
		for _, f := range files {
			if err := link(filepath.Join(usual, host, f.Name()), f.Name()); err != nil {
				return err
			}
		}
		break
	}
	return nil
}
