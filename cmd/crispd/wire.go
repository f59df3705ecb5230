package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync/atomic"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/sdnotify"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server"
	"github.com/crisp-cri/crisp/server/nri"
	"github.com/crisp-cri/crisp/server/spec"
	"github.com/crisp-cri/crisp/server/telemetry"
	"github.com/crisp-cri/crisp/streaming"
)

// A daemon holds the parts of crispd.
type daemon struct {
	files   *files
	records *checkpoint.Manager
	runtime *oci.Runtime
	images  *image.Store
	network *networks
	server  *server.Server

	config    atomic.Pointer[config.Config] // in force
	telemetry *telemetry.Telemetry
	scrape    scrape
	kubelets  kubelets
	noUserNS  error // why pods cannot have user namespaces; nil = they can
}

// wire makes all parts from the configuration and the descriptors that the service
// manager has stored. Each part takes plain options; they know one another only through
// the server.
func wire(ctx context.Context, c *config.Config, f *files, stored map[string]int, log *slog.Logger) (_ *daemon, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)

	host := kernel.Probe()
	systemd := usesSystemd(c, host)
	specHost, err := hostFacts(c, host)
	if err != nil {
		return nil, err
	}
	var confiner server.Confiner
	if profiles, name := appArmor(ctx, c, host, log); profiles != nil {
		confiner, specHost.AppArmorDefault = profiles, name
	}
	labels := seLinux(c, log)
	all, err := handlers(ctx, c, specHost, log)
	if err != nil {
		return nil, err
	}
	d := &daemon{files: f}
	d.config.Store(c)
	if d.telemetry, err = telemetry.New(telemetry.Options{Version: version, Traces: traces(c), Log: log}); err != nil {
		return nil, err
	}
	steps.Add("telemetry", d.telemetry.Close)
	d.scrape = scrape{log: log, tel: d.telemetry, files: f}
	if d.records, err = checkpoint.Open(c.Root, log); err != nil {
		return nil, err
	}
	for _, text := range missing(c) {
		log.Warn("configured file is missing", "err", text)
	}
	if d.images, err = image.Open(ctx, imageOptions(c, d.records, log)); err != nil {
		return nil, err
	}
	steps.Add("image store", d.images.Close)
	labelImages(ctx, labels, imageRoot(c), log)

	if d.network, err = openNetworks(c, d.kubelets.awaited, log); err != nil {
		return nil, err
	}
	steps.Add("network", d.network.Close)

	events := server.NewEvents()
	o := ociOptions(c, d.records, systemd, events.Publish, log)
	o.Stored = stored
	if d.runtime, err = oci.Open(ctx, o); err != nil {
		return nil, err
	}
	steps.Add("runtime", d.runtime.Close)

	d.noUserNS = noUserNS(host, d.images, log)
	d.complete(all, c)
	d.server, err = server.New(server.Options{
		Runtime:            d.runtime,
		Images:             d.images,
		RootFS:             d.images.RootFS(),
		Network:            d.network.Network,
		Events:             events,
		Streaming:          streaming.Options{Addr: c.Streaming.Address, IdleTimeout: c.Streaming.IdleTimeout, Log: log},
		Handlers:           all,
		SpecHost:           specHost,
		SystemdCgroup:      systemd,
		AppArmor:           confiner,
		SELinux:            labels,
		NoUserNS:           d.noUserNS,
		CDISpecDirs:        c.CDI.SpecDirs,
		HooksDirs:          c.HooksDirs,
		NRI:                nriOptions(c),
		CAdvisor:           c.CAdvisorSocket != config.None,
		RejectMountSources: c.RejectMountSources,
		RestoreFromImages:  c.RestoreFromImages,
		Version:            version,
		Root:               c.Root,
		State:              c.State,
		Log:                log,
		Telemetry:          d.telemetry,
	})
	return d, err
}

// close closes the parts, top ones first. Containers keep running.
func (d *daemon) close() error {
	d.scrape.end()
	return errors.Join(d.runtime.Close(), d.network.Close(), d.images.Close(), d.telemetry.Close())
}

// imageRoot returns the directory of the image store.
func imageRoot(c *config.Config) string { return filepath.Join(c.Root, "images") }

func imageOptions(c *config.Config, records *checkpoint.Manager, log *slog.Logger) image.Options {
	return image.Options{
		Root:     imageRoot(c),
		State:    filepath.Join(c.State, "image"),
		Records:  records,
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
