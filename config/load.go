package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/crisp-cri/crisp/internal/regular"
)

// A Source is where a configuration comes from.
type Source struct {
	File   string            // "" = DefaultFile, which need not exist; any other must
	Flags  map[string]string // key → value, of the given ones
	OwnCNI string            // the directory of crisp's own plugins, for the default of cni.bin_dirs; "" = none

	// Of an ordinary user's instance: the defaults of root and state, and the directory with what root's
	// has in /etc/crisp. "" = root's.
	Root, State, Dir string
}

// in returns the path of a file of /etc/crisp.
func (src Source) in(path string) string {
	if src.Dir == "" {
		return path
	}
	return filepath.Join(src.Dir, filepath.Base(path))
}

// Load reads and checks the configuration. Any file that is not as it should be is an error, also a
// drop-in: what it was to say may be what keeps the node safe.
func Load(src Source) (*Config, error) {
	c := &Config{origin: map[string]string{}}
	c.setDefaults(src)

	file, required := src.File, true
	if file == "" {
		file, required = src.in(DefaultFile), false
	}
	err := c.read(file)
	if errors.Is(err, fs.ErrNotExist) && !required {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	// Glob sorts its result, and fails only for a bad pattern.
	dropIns, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "config.d", "*.toml"))
	for _, f := range dropIns {
		if err := c.read(f); err != nil {
			return nil, err
		}
	}
	for _, k := range keys(c) {
		if v, ok := src.Flags[k.name]; ok {
			k.value.SetString(v) // only strings have flags
			c.origin[k.name] = "flag --" + strings.NewReplacer(".", "-", "_", "-").Replace(k.name)
		}
	}
	if filepath.IsAbs(c.State) {
		c.State = Resolve(c.State)
	}
	c.setDerived()
	if err := c.check(); err != nil {
		return nil, err
	}
	return c, nil
}

// maxLinks bounds the links to what does not exist that Resolve follows: they can form a loop.
const maxLinks = 40

// Resolve follows the symbolic links in a path, also where what they lead to does not exist.
// /var/run is often a link, and libcontainer refuses root file systems below one. root stays as
// the user wrote it, since names on the host derive from it.
func Resolve(path string) string { return resolve(path, maxLinks) }

func resolve(path string, links int) string {
	dir := filepath.Dir(path)
	if real, err := filepath.EvalSymlinks(path); err == nil || dir == path {
		return real
	}
	target, err := os.Readlink(path)
	if err != nil || links == 0 {
		return filepath.Join(resolve(dir, links), filepath.Base(path))
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(resolve(dir, links), target)
	}
	return resolve(target, links-1)
}

func (c *Config) setDefaults(src Source) {
	c.Root, c.State = cmp.Or(src.Root, DefaultRoot), cmp.Or(src.State, DefaultState)
	c.CgroupDriver = "auto"
	c.LogMaxLine = 16384
	c.DefaultCapabilities = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
		"SETPCAP", "NET_BIND_SERVICE", "NET_RAW", "SYS_CHROOT", "MKNOD", "AUDIT_WRITE", "SETFCAP"}
	c.Log = Log{Level: "info", Format: "auto"}
	c.SELinux = true
	c.FastInit = true
	c.CNI.DefaultNetwork = Automatic
	c.CNI.BinDirs = []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}
	if src.OwnCNI != "" {
		c.CNI.BinDirs = slices.Insert(c.CNI.BinDirs, 0, src.OwnCNI)
	}
	c.NRI.Enabled = true
	c.CDI.SpecDirs = []string{"/etc/cdi", "/var/run/cdi"}
	c.HooksDirs = []string{"/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"}
	c.Streaming = Streaming{Address: "127.0.0.1:0", IdleTimeout: 4 * time.Hour}
	c.Image.Layers = "auto"
	c.Image.MaxParallel = 4
	c.Image.PolicyDir, c.Image.AuthDir, c.Image.DecryptionKeysPath = src.in("/etc/crisp/policies"), src.in("/etc/crisp/auth"), src.in("/etc/crisp/keys")
	c.Image.ProgressTimeout = time.Minute
}

// setDerived sets the defaults that depend on other values.
func (c *Config) setDerived() {
	c.Socket = cmp.Or(c.Socket, filepath.Join(c.State, "crisp.sock"))
	c.CAdvisorSocket = cmp.Or(c.CAdvisorSocket, filepath.Join(c.State, "cadvisor.sock"))
	if c.CNI.ConfDir == "" {
		c.CNI.ConfDir = filepath.Join(c.Root, "cni", "net.d")
		if c.Root == DefaultRoot {
			c.CNI.ConfDir = "/etc/cni/net.d"
		}
	}
	if c.NRI.Socket == "" {
		c.NRI.Socket = filepath.Join(c.State, "nri.sock")
		if c.DefaultInstance() {
			c.NRI.Socket = "/var/run/nri/nri.sock"
		}
	}
	for _, h := range c.Handlers {
		if h.DefaultCapabilities == nil {
			h.DefaultCapabilities = c.DefaultCapabilities
		}
		h.SeccompProfile = cmp.Or(h.SeccompProfile, c.SeccompProfile)
		if h.Shim == "" {
			h.Engine = cmp.Or(h.Engine, Libcontainer)
		} else {
			h.Snapshot, h.Sandboxer = cmp.Or(h.Snapshot, SnapshotDirectory), cmp.Or(h.Sandboxer, SandboxerContainer)
		}
	}
}

// read applies one file to the values set so far.
func (c *Config) read(file string) error {
	data, err := regular.ReadFile(file, regular.MaxConfig)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	var tree map[string]any
	md, err := toml.Decode(string(data), &tree)
	if err != nil {
		var syntax toml.ParseError
		if errors.As(err, &syntax) {
			return fmt.Errorf("%s:%d: %s", file, syntax.Position.Line, syntax.Message)
		}
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, name := range md.Keys() {
		if _, table := lookup(tree, name).(map[string]any); table && len(name) == 2 && name[0] == handlersTable && c.Handlers[name[1]] == nil {
			if c.Handlers == nil {
				c.Handlers = map[string]*Handler{}
			}
			c.Handlers[name[1]] = &Handler{CgroupNamespace: "auto"}
			c.origin[name.String()] = position(file, data, name)
		}
	}
	known, tables := map[string]key{}, map[string]bool{handlersTable: true}
	for _, k := range keys(c) {
		known[k.name], tables[k.table] = k, true
	}
	for _, name := range md.Keys() {
		if len(name) > 3 && name[0] == handlersTable && name[2] == optionsKey {
			name = name[:3] // the names below it are the shim's
		}
		at := position(file, data, name)
		k, ok := known[name.String()]
		value := lookup(tree, name)
		switch {
		case ok:
			if err := k.assign(value); err != nil {
				return fmt.Errorf("%s: %s: %w", at, k.name, err)
			}
			c.origin[k.name] = at
		case !tables[name.String()]:
			return fmt.Errorf("%s: %s is not a key of the configuration", at, name)
		default:
			if _, ok := value.(map[string]any); !ok {
				return fmt.Errorf("%s: %s: want a table, have %s", at, name, kind(value))
			}
		}
	}
	return nil
}

// handlersTable is the table whose tables have free names, optionsKey the key of those tables whose
// value may be a table.
const (
	handlersTable = "handlers"
	optionsKey    = "options"
)

func lookup(tree map[string]any, name toml.Key) any {
	var v any = tree
	for _, part := range name {
		t, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = t[part]
	}
	return v
}

// position returns where name is in a file, as file:line. The decoder reports positions only in
// errors: so position decodes into a struct that has only this field, whose decoding fails.
func position(file string, data []byte, name toml.Key) string {
	t := reflect.TypeFor[refusing]()
	for _, part := range slices.Backward(name) {
		t = reflect.StructOf([]reflect.StructField{{Name: "F", Type: t, Tag: reflect.StructTag("toml:" + strconv.Quote(part))}})
	}
	_, err := toml.Decode(string(data), reflect.New(t).Interface())
	var at toml.ParseError
	if errors.As(err, &at) && at.Position.Line > 0 {
		return fmt.Sprintf("%s:%d", file, at.Position.Line)
	}
	return file
}

type refusing struct{}

// UnmarshalTOML makes the decoder report its position.
func (*refusing) UnmarshalTOML(any) error { return errors.New("here") }
