package config

import (
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// maxSocketPath is the length of sun_path without its NUL byte (unix(7)).
const maxSocketPath = 107

// check refuses values that have the right type but make no sense.
func (c *Config) check() error {
	for _, f := range []struct{ key, path string }{{"root", c.Root}, {"state", c.State}, {"socket", c.Socket}, {"cni.conf_dir", c.CNI.ConfDir}, {"nri.socket", c.NRI.Socket}} {
		if !filepath.IsAbs(f.path) {
			return c.wrong(f.key, "%q is not an absolute path", f.path)
		}
	}
	c.Root, c.State = filepath.Clean(c.Root), filepath.Clean(c.State)
	for _, f := range []struct{ key, path string }{
		{"seccomp_profile", c.SeccompProfile}, {"image.registries_conf", c.Image.RegistriesConf},
		{"image.policy", c.Image.Policy}, {"image.policy_dir", c.Image.PolicyDir}, {"image.registries_dir", c.Image.RegistriesDir},
		{"image.auth_file", c.Image.AuthFile}, {"image.auth_dir", c.Image.AuthDir}, {"image.decryption_keys_path", c.Image.DecryptionKeysPath},
	} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			return c.wrong(f.key, "%q is not an absolute path", f.path)
		}
	}
	switch {
	case c.Root == "/" || c.State == "/":
		return c.wrong("root", "neither root nor state may be the root directory")
	case within(c.Root, c.State) || within(c.State, c.Root):
		return c.wrong("state", "%s and root %s must not be one below the other", c.State, c.Root)
	case len(c.Socket) > maxSocketPath:
		return c.wrong("socket", "%q is longer than %d bytes", c.Socket, maxSocketPath)
	case c.CAdvisorSocket != None && !filepath.IsAbs(c.CAdvisorSocket):
		return c.wrong("cadvisor_socket", "%q is neither %s nor an absolute path", c.CAdvisorSocket, None)
	case len(c.CAdvisorSocket) > maxSocketPath:
		return c.wrong("cadvisor_socket", "%q is longer than %d bytes", c.CAdvisorSocket, maxSocketPath)
	case len(c.NRI.Socket) > maxSocketPath:
		return c.wrong("nri.socket", "%q is longer than %d bytes", c.NRI.Socket, maxSocketPath)
	case len(c.State)+len("/executor.sock") > maxSocketPath:
		return c.wrong("state", "%q is too long for a socket in it", c.State)
	case c.LogMaxLine < 64 || c.LogMaxLine > 1<<20:
		return c.wrong("log_max_line", "%d is not between 64 and 1048576", c.LogMaxLine)
	case c.Image.MaxParallel < 1 || c.Image.MaxParallel > 64:
		return c.wrong("image.max_parallel", "%d is not between 1 and 64", c.Image.MaxParallel)
	}
	for _, f := range []struct {
		key, value string
		allowed    []string
	}{
		{"cgroup_driver", c.CgroupDriver, []string{"auto", "systemd", "cgroupfs"}},
		{"image.layers", c.Image.Layers, []string{"auto", "directories", "erofs"}},
		{"log.level", c.Log.Level, []string{"debug", "info", "warn", "error"}},
		{"log.format", c.Log.Format, []string{"auto", "json", "text"}},
	} {
		if !slices.Contains(f.allowed, f.value) {
			return c.wrong(f.key, "%q is none of %s", f.value, strings.Join(f.allowed, ", "))
		}
	}
	if err := c.checkHandlers(); err != nil {
		return err
	}
	return c.checkLists()
}

// handlerName matches DNS labels, the names that a RuntimeClass allows.
var handlerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (c *Config) checkHandlers() error {
	for _, name := range slices.Sorted(maps.Keys(c.Handlers)) {
		key, h := handlersTable+"."+name, c.Handlers[name]
		switch {
		case name == "crisp":
			return c.wrong(key, "that is the default handler, whose keys are the ones outside of the handlers")
		case !handlerName.MatchString(name):
			return c.wrong(key, "%q is not a name that a RuntimeClass can have", name)
		case h.Shim == "" && h.Engine != Libcontainer && !filepath.IsAbs(h.Engine):
			return c.wrong(key+".engine", "%q is neither %s nor an absolute path", h.Engine, Libcontainer)
		case h.SeccompProfile != "" && !filepath.IsAbs(h.SeccompProfile):
			return c.wrong(key+".seccomp_profile", "%q is not an absolute path", h.SeccompProfile)
		case h.CNIConfDir != "" && !filepath.IsAbs(h.CNIConfDir):
			return c.wrong(key+".cni_conf_dir", "%q is not an absolute path", h.CNIConfDir)
		case len(h.Annotations) > 0 && h.Engine == Libcontainer:
			return c.wrong(key+".annotations", "%s takes none", Libcontainer)
		case !slices.Contains([]string{"auto", "private", "host"}, h.CgroupNamespace):
			return c.wrong(key+".cgroup_namespace", "%q is none of auto, private, host", h.CgroupNamespace)
		}
		if err := c.checkShim(key, h); err != nil {
			return err
		}
		for _, pattern := range h.Annotations {
			if _, err := path.Match(pattern, ""); err != nil {
				return c.wrong(key+".annotations", "%q: %v", pattern, err)
			}
		}
	}
	return nil
}

func (c *Config) checkLists() error {
	if host, port, err := net.SplitHostPort(c.Streaming.Address); err != nil || !isPort(port) {
		return c.wrong("streaming.address", "%q is not host:port", c.Streaming.Address)
	} else if _, err := netip.ParseAddr(host); err != nil {
		return c.wrong("streaming.address", "%q is not the address of an interface", host)
	}
	for _, f := range []struct {
		key  string
		dirs []string
	}{{"cni.bin_dirs", c.CNI.BinDirs}, {"cdi.spec_dirs", c.CDI.SpecDirs}, {"image.hosts_dirs", c.Image.HostsDirs}, {"hooks_dir", c.HooksDirs}, {"reject_mount_sources", c.RejectMountSources}} {
		for _, dir := range f.dirs {
			if !filepath.IsAbs(dir) {
				return c.wrong(f.key, "%q is not an absolute path", dir)
			}
		}
	}
	if a := c.Metrics.Address; a != "" && !isAddress(a) {
		return c.wrong("metrics.address", "%q is neither host:port nor unix:///path", a)
	}
	if e := c.Tracing.Endpoint; e != "" && !IsEndpoint(e) {
		return c.wrong("tracing.endpoint", "%q is neither host:port, nor a URL of http, https or unix with nothing but that", e)
	}
	if n := c.Tracing.SamplesPerMillion; n < 0 || n > 1000000 {
		return c.wrong("tracing.samples_per_million", "%d is not between 0 and 1000000", n)
	}
	if _, err := c.Prefixes(); err != nil {
		return c.wrong("cni.pod_cidrs", "%v", err)
	}
	if _, err := c.ParsedRlimits(); err != nil {
		return c.wrong("rlimits", "%v", err)
	}
	if slices.Contains(c.Image.Pinned, "") {
		return c.wrong("image.pinned", "\"\" is no name")
	}
	return nil
}

// wrong returns an error for the value of key, with the place where it is set.
func (c *Config) wrong(key, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %s", c.Origin(key), key, fmt.Sprintf(format, args...))
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// isAddress reports whether s is host:port, or unix:// and an absolute path.
func isAddress(s string) bool {
	if p, ok := strings.CutPrefix(s, "unix://"); ok {
		return filepath.IsAbs(p) && len(p) <= maxSocketPath
	}
	_, port, err := net.SplitHostPort(s)
	return err == nil && isPort(port)
}

// IsEndpoint reports whether s can be the endpoint of a trace collector: an address; host:port
// may follow http:// or https://.
func IsEndpoint(s string) bool {
	host := strings.TrimPrefix(strings.TrimPrefix(s, "https://"), "http://")
	return isAddress(host) && (host == s || !strings.Contains(host, "://"))
}

func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

// Prefixes parses CNI.PodCIDRs: at most one IPv4 and one IPv6 subnet.
func (c *Config) Prefixes() ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, s := range c.CNI.PodCIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("%q is not a subnet such as 10.88.0.0/16", s)
		}
		// Room for a gateway, a pod, the network's address and, for IPv4, the broadcast
		// address.
		if p.Bits() == 0 || p.Addr().BitLen()-p.Bits() < 2 {
			return nil, fmt.Errorf("%q has no room for pods: /30 is the smallest IPv4 subnet, /126 the smallest IPv6 one", s)
		}
		if slices.ContainsFunc(list, func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() }) {
			return nil, fmt.Errorf("%q is the second subnet of its family", s)
		}
		list = append(list, p)
	}
	return list, nil
}

var rlimitNames = []string{"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack"}

// ParsedRlimits parses Rlimits.
func (c *Config) ParsedRlimits() ([]specs.POSIXRlimit, error) {
	var list []specs.POSIXRlimit
	for _, s := range c.Rlimits {
		name, value, ok := strings.Cut(s, "=")
		if !ok || !slices.Contains(rlimitNames, name) {
			return nil, fmt.Errorf("%q is not a limit such as \"nofile=1024:524288\"", s)
		}
		softText, hardText, two := strings.Cut(value, ":")
		if !two {
			hardText = softText
		}
		soft, err1 := rlimitValue(softText)
		hard, err2 := rlimitValue(hardText)
		if err1 != nil || err2 != nil || soft > hard {
			return nil, fmt.Errorf("%q is not a limit such as \"nofile=1024:524288\", soft before hard", s)
		}
		kind := "RLIMIT_" + strings.ToUpper(name)
		if slices.ContainsFunc(list, func(l specs.POSIXRlimit) bool { return l.Type == kind }) {
			return nil, fmt.Errorf("%q is the second limit %s", s, name)
		}
		list = append(list, specs.POSIXRlimit{Type: kind, Soft: soft, Hard: hard})
	}
	return list, nil
}

func rlimitValue(s string) (uint64, error) {
	if s == "-1" || s == "unlimited" {
		return math.MaxUint64, nil
	}
	return strconv.ParseUint(s, 10, 64)
}
