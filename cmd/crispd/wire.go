package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/rootless"
	"github.com/crisp-cri/crisp/internal/sdnotify"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server"
	"github.com/crisp-cri/crisp/server/nri"
	"github.com/crisp-cri/crisp/server/spec"
	"github.com/crisp-cri/crisp/server/telemetry"
)

// A daemon holds the parts of crispd.
type daemon struct {
	files   *files
	records *checkpoint.Manager
	runtime *oci.Runtime
	images  *image.Store
	network *networks
	cutOff  <-chan struct{} // closed when the way out of a user's network has ended
	server  *server.Server

	config    atomic.Pointer[config.Config] // in force
	telemetry *telemetry.Telemetry
	scrape    scrape
	kubelets  kubelets
}

// wire makes all parts from the configuration and the descriptors that the service
// manager has stored. Each part takes plain options; they know one another only through
// the server.
func wire(ctx context.Context, c *config.Config, f *files, stored map[string]int, log *slog.Logger) (_ *daemon, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)

	host := kernel.Probe()
	switch {
	case host.NoCgroups:
		log.Info("crispd is in a user namespace: containers have no limits and no counters", "users", host.IDs.UID.Length, "groups", host.IDs.GID.Length, "why", rootless.NoCgroups())
	case host.Bare:
		missing := slices.DeleteFunc([]string{"cpu", "memory", "pids", "cpuset", "io"}, host.Has)
		log.Info("crispd is in a user namespace: limits of missing controllers are not set", "users", host.IDs.UID.Length, "groups", host.IDs.GID.Length, "missing", missing)
	}
	systemd := usesSystemd(c, host)
	options, err := serverOptions(ctx, c, log)
	if err != nil {
		return nil, err
	}
	labels := seLinux(c, log)
	d := &daemon{files: f}
	d.config.Store(c)
	if d.telemetry, err = telemetry.New(telemetry.Options{Version: version, Traces: traces(c), Log: log}); err != nil {
		return nil, err
	}
	steps.Add("telemetry", d.telemetry.Close)
	d.scrape = scrape{log: log, tel: d.telemetry, files: f}
	if d.records, err = checkpoint.Open(c.Root, c.State, log); err != nil {
		return nil, err
	}
	warnOfFiles(c, log)
	if d.images, err = image.Open(ctx, imageOptions(c, d.records, log)); err != nil {
		return nil, err
	}
	steps.Add("image store", d.images.Close)
	labelImages(ctx, labels, imageRoot(c), log)

	if d.network, err = openNetworks(c, d.kubelets.awaited, log); err != nil {
		return nil, err
	}
	steps.Add("network", d.network.Close)
	if d.cutOff, err = rootless.Network(c.State); err != nil {
		return nil, err
	}

	events := server.NewEvents()
	o := ociOptions(c, d.records, systemd, events.Publish, log)
	o.Stored = stored
	if d.runtime, err = oci.Open(ctx, o); err != nil {
		return nil, err
	}
	steps.Add("runtime", d.runtime.Close)

	d.complete(options.Handlers, c)
	options.Runtime = d.runtime
	options.Images = d.images
	options.RootFS = d.images.RootFS()
	options.Network = d.network.Network
	if options.HostPorts = rootless.OpenPorts(c.State); options.HostPorts != nil {
		if options.Streaming.Listener, err = rootless.Listen(c.Streaming.Address); err != nil {
			return nil, fmt.Errorf("listen for streams: %w", err)
		}
	}
	options.Events = events
	options.Streaming.Addr = c.Streaming.Address
	options.Streaming.Log = log
	options.SystemdCgroup = systemd
	options.SELinux = labels
	options.NoUserNS = noUserNS(host, d.images, log)
	options.NRI = nriOptions(c)
	options.CAdvisor = c.CAdvisorSocket != config.None
	options.Version = version
	options.Root = c.Root
	options.State = c.State
	options.Log = log
	options.Telemetry = d.telemetry
	d.server, err = server.New(options)
	return d, err
}

// close closes the parts, top ones first. Containers keep running.
func (d *daemon) close() error {
	d.scrape.end()
	return errors.Join(d.runtime.Close(), d.network.Close(), d.images.Close(), d.telemetry.Close())
}

func imageRoot(c *config.Config) string { return filepath.Join(c.Root, "images") }

func imageOptions(c *config.Config, records *checkpoint.Manager, log *slog.Logger) image.Options {
	return image.Options{
		Root:     imageRoot(c),
		State:    filepath.Join(c.State, "image"),
		Records:  records,
		Squash:   c.Image.IgnoreChownErrors,
		Layers:   c.Image.Layers,
		Unclean:  records.Boot() == checkpoint.Unclean,
		Log:      log,
		Settings: imageSettings(c),
	}
}

// imageSettings returns the argument of image.Store.Reconfigure.
func imageSettings(c *config.Config) image.Settings {
	return image.Settings{
		Settings: registry.Settings{
			RegistriesConf:  c.Image.RegistriesConf,
			HostsDirs:       c.Image.HostsDirs,
			RegistriesDir:   c.Image.RegistriesDir,
			PolicyPath:      c.Image.Policy,
			PolicyDir:       c.Image.PolicyDir,
			AuthFile:        c.Image.AuthFile,
			AuthDir:         c.Image.AuthDir,
			ProgressTimeout: c.Image.ProgressTimeout,
		},
		KeysDir:     c.Image.DecryptionKeysPath,
		Pinned:      c.Image.Pinned,
		MaxParallel: c.Image.MaxParallel,
	}
}

func ociOptions(c *config.Config, records *checkpoint.Manager, systemd bool, publish func(oci.Event), log *slog.Logger) oci.Options {
	o := oci.Options{
		Root:          c.Root,
		State:         c.State,
		NetNSDir:      netNSDir(c),
		Records:       records,
		Rebooted:      records.Boot().Rebooted(),
		Executor:      beside("crisp-executor"),
		PodInit:       beside("crisp-podinit"),
		SystemdCgroup: systemd,
		FastInit:      c.FastInit,
		LogMaxLine:    c.LogMaxLine,
		OnEvent:       publish,
		Log:           log,
	}
	if store := sdnotify.NewStore(); store != nil {
		o.Store = store
	}
	return o
}

// netNSDir returns the directory of the pods' network namespaces. Agents of CNI plugins that
// open them from their own pod mount this directory, which ip-netns(8) and the other runtimes
// use too. Any other instance uses its state directory.
func netNSDir(c *config.Config) string {
	if c.DefaultInstance() {
		return "/var/run/netns"
	}
	return filepath.Join(c.State, "netns")
}

// nriOptions starts the plugins that are installed on the machine in the default instance only,
// since there may be several instances.
func nriOptions(c *config.Config) *nri.Options {
	if !c.NRI.Enabled {
		return nil
	}
	o := &nri.Options{Socket: c.NRI.Socket}
	if c.DefaultInstance() {
		o.PluginDir, o.ConfigDir = "/opt/nri/plugins", "/etc/nri/conf.d"
	}
	return o
}

// instance distinguishes this instance's names on the host from those of others: "" for
// the default one, else a hash of its directories.
func instance(c *config.Config) string {
	if c.DefaultInstance() {
		return ""
	}
	sum := sha256.Sum256([]byte(c.Root + "\x00" + c.State))
	return hex.EncodeToString(sum[:8])
}

// usesSystemd decides the cgroup driver, which stays the same while crispd runs: the
// kubelet asks once.
func usesSystemd(c *config.Config, host kernel.Features) bool {
	if c.CgroupDriver == "auto" {
		return host.Systemd && host.CgroupV2
	}
	return c.CgroupDriver == "systemd"
}

// hostFacts gathers what package spec needs to know about this node.
func hostFacts(c *config.Config, host kernel.Features) (spec.Host, error) {
	h := spec.Host{
		CgroupV2:        host.CgroupV2,
		SwapLimit:       host.SwapLimit,
		Hugetlb:         host.Has("hugetlb"),
		RecursiveRO:     host.RecursiveRO,
		Seccomp:         host.Seccomp,
		AppArmor:        host.AppArmor,
		NoNodes:         host.NoNodes,
		MinOOMScoreAdj:  host.MinOOMScoreAdj(),
		Capabilities:    spec.CapabilitiesOf(host.Capabilities),
		DevicesFromUser: c.DeviceOwnership,
	}
	if host.Bare {
		h.IDs = host.IDs
	}
	if runtime.GOARCH == "amd64" {
		h.Arches = []specs.Arch{specs.ArchX86_64}
		if host.IA32 {
			h.Arches = append(h.Arches, specs.ArchX86)
		}
		if host.X32 {
			h.Arches = append(h.Arches, specs.ArchX32)
		}
	}
	var err error
	if h.DefaultCapabilities, err = spec.CapabilityNames(c.DefaultCapabilities); err != nil {
		return h, fmt.Errorf("%s: default_capabilities: %w", c.Origin("default_capabilities"), err)
	}
	if h.SeccompDefault, err = seccompDefault(c.SeccompProfile); err != nil {
		return h, fmt.Errorf("%s: seccomp_profile: %w", c.Origin("seccomp_profile"), err)
	}
	h.Rlimits, err = c.ParsedRlimits()
	return h, err
}

// beside returns the path of a program or directory of crisp: beside crispd's executable, or in
// ../libexec/crisp from there; "" if it is in neither place.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	dir := filepath.Dir(self)
	for _, path := range []string{filepath.Join(dir, name), filepath.Join(dir, "..", "libexec", "crisp", name)} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// noUserNS returns why this node cannot give pods user namespaces; nil if it can. crispd calls
// it once: the scheduler relies on the answer, which must not change back and forth.
func noUserNS(host kernel.Features, images *image.Store, log *slog.Logger) error {
	err := errors.New("the kernel or its administrator allows none")
	if host.UserNS {
		err = images.RootFS().CheckIDMap()
	}
	if err != nil {
		log.Info("user namespaces are not available", "err", err)
	}
	return err
}

// errNoIDMap says why pods of an OCI runtime use the host's user namespace.
var errNoIDMap = errors.New("its OCI runtime does not map mounts")

// handlers returns the configured runtime handlers. Each is the node's default with
// its own settings on top, limited to what its OCI runtime supports.
func handlers(ctx context.Context, c *config.Config, host spec.Host, log *slog.Logger) (map[string]server.Handler, error) {
	all := map[string]server.Handler{}
	systemd := sync.OnceValue(func() bool { return usesSystemd(c, kernel.Probe()) })
	for name, hc := range c.Handlers {
		h, key := server.Handler{SpecHost: host}, "handlers."+name
		var err error
		if h.SpecHost.DefaultCapabilities, err = spec.CapabilityNames(hc.DefaultCapabilities); err != nil {
			return nil, fmt.Errorf("%s: %s.default_capabilities: %w", c.Origin(key+".default_capabilities"), key, err)
		}
		if h.SpecHost.SeccompDefault, err = seccompDefault(hc.SeccompProfile); err != nil {
			return nil, fmt.Errorf("%s: %s.seccomp_profile: %w", c.Origin(key+".seccomp_profile"), key, err)
		}
		if hc.CgroupNamespace != "auto" {
			h.SpecHost.CgroupNamespace = hc.CgroupNamespace
		}
		switch {
		case host.IDs != nil && (hc.Shim != "" || hc.Engine != config.Libcontainer):
			return nil, fmt.Errorf("%s: %s: crispd is in a user namespace, where it uses neither OCI runtimes nor shims yet", c.Origin(key+".engine"), key)
		case hc.Shim != "":
			if err := shimHandler(ctx, &h, hc, systemd(), name, log); err != nil {
				return nil, fmt.Errorf("%s: %s.options: %w", c.Origin(key+".options"), key, err)
			}
		case hc.Engine != config.Libcontainer:
			if err := engineHandler(ctx, &h, hc, name, log); err != nil {
				return nil, fmt.Errorf("%s: %s.engine: %w", c.Origin(key+".engine"), key, err)
			}
		}
		all[name] = h
	}
	return all, nil
}

// engineHandler adds to h what the configuration of a handler with an OCI runtime says.
func engineHandler(ctx context.Context, h *server.Handler, hc *config.Handler, name string, log *slog.Logger) error {
	if _, err := exec.LookPath(hc.Engine); err != nil {
		return fmt.Errorf("%w: %w", errNoProgram, err)
	}
	h.Engine, h.Annotations = hc.Engine, hc.Annotations
	var err error
	if h.Features, err = oci.AskFeatures(ctx, hc.Engine); err != nil {
		log.Warn("OCI runtime did not report its features", "handler", name, "err", err)
	}
	h.SpecHost.RecursiveRO = h.SpecHost.RecursiveRO && h.Features.RecursiveRO
	if !h.Features.IDMap {
		h.NoUserNS = errNoIDMap
	}
	return nil
}

// seccompDefault reads a profile that replaces the built-in one; "" means none.
func seccompDefault(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	profile, err := os.ReadFile(path)
	if err == nil {
		_, err = spec.ParseSeccomp(profile, nil, "")
	}
	return profile, err
}
