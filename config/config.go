// Package config reads crispd's configuration into one plain struct, which is fixed once it is
// loaded. Only cmd imports it; every other package takes plain options.
//
// A value comes from the first of these that sets it:
//
//	a flag of the command line          --root
//	a drop-in                           config.d/*.toml beside the file, the last in lexical order first
//	the configuration file              /etc/crisp/config.toml
//	the default                         which may depend on root and state
//
// A later value replaces an earlier one completely, even a list. An unknown key, a value of the
// wrong type and one that makes no sense are errors that name the file and the line: a typo must
// not become a default.
//
// All paths depend on root and state, so that two instances that differ in both share nothing.
package config

import "time"

// The paths of the default instance.
const (
	DefaultFile  = "/etc/crisp/config.toml"
	DefaultRoot  = "/var/lib/crisp"
	DefaultState = "/run/crisp"
)

// Config is the configuration in force. The tag of a field is its key in TOML.
type Config struct {
	// Root holds what must survive a reboot: images, records, addresses.
	// An absolute path; default /var/lib/crisp.
	Root string `toml:"root"`
	// State holds what does not outlive a reboot: mounts, namespaces, sockets. An
	// absolute path on a tmpfs; default /run/crisp.
	State string `toml:"state"`
	// Socket is the unix socket of the CRI. Default: crisp.sock in state.
	Socket string `toml:"socket"`
	// CAdvisorSocket is the unix socket where the kubelet's cAdvisor looks up the container or
	// pod of a cgroup, over the part of containerd's API that it uses for that: kubelet
	// --containerd=SOCKET. Only root can use it. "none" disables it. Default: cadvisor.sock in
	// state.
	CAdvisorSocket string `toml:"cadvisor_socket"`
	// CgroupDriver is "systemd", "cgroupfs", or "auto": systemd where it runs the host on cgroup
	// v2. The kubelet asks crispd for the driver and must use the same one.
	CgroupDriver string `toml:"cgroup_driver"`
	// LogMaxLine is the longest line of a container's log, in bytes; longer ones are
	// split, as CRI's log format defines. Default 16384.
	LogMaxLine int `toml:"log_max_line"`
	// SeccompProfile is a file that replaces the built-in default profile
	// (RuntimeDefault). Default: none.
	SeccompProfile string `toml:"seccomp_profile"`
	// AppArmorProfile is the name of a loaded AppArmor profile for containers that ask for
	// RuntimeDefault or set no profile; "unconfined" leaves them unconfined. Default: "",
	// crisp's own profile, which crispd loads.
	AppArmorProfile string `toml:"apparmor_profile"`
	// SELinux gives each pod its own SELinux labels where SELinux is on. Default true.
	SELinux bool `toml:"selinux"`
	// DefaultCapabilities are the capabilities, without CAP_, of a container that requests none;
	// an empty list means none. Default: the fourteen that container engines agree on.
	DefaultCapabilities []string `toml:"default_capabilities"`
	// Rlimits are resource limits of every container, as "nofile=1024:524288" (soft:hard; -1 =
	// unlimited). Default: none, so that containers inherit crispd's.
	Rlimits []string `toml:"rlimits"`
	// DeviceOwnership makes a container's user own the container's devices, instead of the owner
	// on the host, so that using them does not require root. Default false.
	DeviceOwnership bool `toml:"device_ownership_from_security_context"`

	// RejectMountSources are host paths that a container cannot mount when they are missing;
	// other missing paths are created. Default: none.
	RejectMountSources []string `toml:"reject_mount_sources"`
	// RestoreFromImages lets CreateContainer restore a container from a checkpoint image, which
	// any user who can create a pod can name: CRIU restores its content as root. Default false.
	// Archives on this node and RestorePod, which pods cannot request, are always restored.
	RestoreFromImages bool `toml:"restore_from_images"`
	// FastInit starts containers and execs with a first process written in C, which takes a
	// third of the time that libcontainer's own takes. libcontainer still starts what it does
	// not support, such as hooks and profiles that notify. Default true.
	FastInit bool `toml:"fast_init"`
	// HooksDirs are searched for oci-hooks(5) files, which add hooks to containers; a file in a
	// later directory replaces one of the same name. Default: /usr/share/containers/oci/hooks.d,
	// /etc/containers/oci/hooks.d.
	HooksDirs []string `toml:"hooks_dir"`

	Log       Log       `toml:"log"`
	CNI       CNI       `toml:"cni"`
	CDI       CDI       `toml:"cdi"`
	NRI       NRI       `toml:"nri"`
	Streaming Streaming `toml:"streaming"`
	Image     Image     `toml:"image"`
	Metrics   Metrics   `toml:"metrics"`
	Tracing   Tracing   `toml:"tracing"`

	// Handlers are the runtime handlers for RuntimeClass, each a table [handlers.NAME]. The
	// default one, "" and "crisp", is not among them.
	Handlers map[string]*Handler `toml:"handlers"`

	origin map[string]string
}

// Log configures crispd's own log, which goes to standard error.
type Log struct {
	// Level is "debug", "info", "warn" or "error". Default info.
	Level string `toml:"level"`
	// Format is "json", "text", or "auto": text on a terminal. Default auto.
	Format string `toml:"format"`
}

// CNI configures pod networks.
type CNI struct {
	// ConfDir is watched for network configurations. Default: /etc/cni/net.d; for an
	// instance with another root, cni/net.d below that.
	ConfDir string `toml:"conf_dir"`
	// BinDirs are searched for plugins, in order. Default: crisp's own plugins,
	// /opt/cni/bin, /usr/lib/cni, /usr/libexec/cni.
	BinDirs []string `toml:"bin_dirs"`
	// DefaultNetwork makes crisp provide its own network if conf_dir has none: true, false, or
	// "auto": not while a cluster's kubelet is connected, whose pods wait for the cluster's
	// network. Default "auto".
	DefaultNetwork Auto `toml:"default_network"`
	// PodCIDRs are the subnets of the default network, at most one per family, in the order of a
	// pod's addresses. Plugins of another network get them as ipRanges if they have that
	// capability. Default: one per family, derived from root and state, IPv4 first. After a
	// change, running pods keep their addresses.
	PodCIDRs []string `toml:"pod_cidrs"`
}

// CDI is the Container Device Interface.
type CDI struct {
	// SpecDirs are searched for vendors' descriptions of devices; a later directory takes
	// precedence. Default: /etc/cdi, /var/run/cdi, where vendors put them.
	SpecDirs []string `toml:"spec_dirs"`
}

// NRI is the Node Resource Interface: plugins that watch containers and change their
// configuration.
type NRI struct {
	// Enabled lets plugins connect. Default true.
	Enabled bool `toml:"enabled"`
	// Socket is the unix socket where plugins connect. Default:
	// /var/run/nri/nri.sock, where they look for it; for an instance with another
	// root or state, nri.sock in state. Only the default instance starts the plugins
	// in /opt/nri/plugins, with their configuration from /etc/nri/conf.d.
	Socket string `toml:"socket"`
}

// Streaming configures the server of exec, attach and port-forward.
type Streaming struct {
	// Address is where it listens, host:port; port 0 is any free one. Only the
	// kubelet of this machine needs to reach it. Default 127.0.0.1:0.
	Address string `toml:"address"`
	// IdleTimeout is after how long an idle connection is closed. Default 4h.
	IdleTimeout time.Duration `toml:"idle_timeout"`
}

// Image configures how images are pulled and kept.
type Image struct {
	// Layers is the form of new layers: "directories" or, with "auto" and "erofs", EROFS file
	// systems, if the kernel can mount those from files (Linux 6.12); otherwise they are
	// directories, and "erofs" logs a warning. Existing layers stay as they are. Default "auto".
	Layers string `toml:"layers"`
	// IgnoreChownErrors gives files of images to root whose owners crispd has no IDs for, in a user
	// namespace, and takes their set-user-ID and set-group-ID bits; otherwise such an image cannot be
	// pulled. Layers stay as they were unpacked. Default false.
	IgnoreChownErrors bool `toml:"ignore_chown_errors"`
	// Pinned are names of images that the kubelet must not collect; * matches any
	// characters. Default: none.
	Pinned []string `toml:"pinned"`
	// MaxParallel is how many layers one pull fetches and unpacks at once.
	// Default 4.
	MaxParallel int `toml:"max_parallel"`
	// ProgressTimeout is how long a request of a pull may receive no byte; 0 is without a limit. A
	// layer that stalls is resumed, after three times without progress from the next mirror or the
	// registry; if none is left, the pull fails. Default 1m.
	ProgressTimeout time.Duration `toml:"progress_timeout"`
	// RegistriesConf is a registries.conf(5). Default:
	// $CONTAINERS_REGISTRIES_CONF, then /etc/containers/registries.conf.
	RegistriesConf string `toml:"registries_conf"`
	// HostsDirs are searched for containerd's hosts.toml, by registry, if
	// registries.conf does not mention it: "/etc/containerd/certs.d". Default: none.
	HostsDirs []string `toml:"hosts_dirs"`
	// Policy is a policy.json(5). Default: /etc/containers/policy.json; without that
	// file every image is accepted.
	Policy string `toml:"policy"`
	// PolicyDir has policies of Kubernetes namespaces, which replace the node's: NAMESPACE.json.
	// Default /etc/crisp/policies.
	PolicyDir string `toml:"policy_dir"`
	// RegistriesDir is a containers-registries.d(5), which says where signatures
	// are. Default: /etc/containers/registries.d.
	RegistriesDir string `toml:"registries_dir"`
	// AuthFile is a containers-auth.json(5). Default: $REGISTRY_AUTH_FILE, then
	// the usual places.
	AuthFile string `toml:"auth_file"`
	// AuthDir has credentials of Kubernetes namespaces, which replace the node's:
	// NAMESPACE.json. Default /etc/crisp/auth.
	AuthDir string `toml:"auth_dir"`
	// DecryptionKeysPath is a directory of private keys for encrypted images.
	// Default /etc/crisp/keys.
	DecryptionKeysPath string `toml:"decryption_keys_path"`
}

// Metrics are crispd's own, in Prometheus' text format at /metrics. The debug socket, which only
// root can use, always serves them.
type Metrics struct {
	// Address is where else they are served: host:port, or unix:///path. Whoever can connect can read
	// them. Default: nowhere.
	Address string `toml:"address"`
}

// Tracing sends spans of calls, and of their slow stages, to an OpenTelemetry
// collector.
type Tracing struct {
	// Endpoint is a collector that speaks OTLP over gRPC: host:port or
	// http://host:port unencrypted, https://host:port, or unix:///path. Default:
	// none; nothing is traced.
	Endpoint string `toml:"endpoint"`
	// SamplesPerMillion is how many of a million calls begin a new trace. A call that is part of
	// its client's trace, as the kubelet's are, is sampled if that trace is. Default 0.
	SamplesPerMillion int `toml:"samples_per_million"`
}

// Handler overrides settings for the containers of one runtime handler.
type Handler struct {
	// Engine runs the containers: "libcontainer", which is built in, or the absolute
	// path of an OCI runtime such as runc or crun. Default libcontainer.
	Engine string `toml:"engine"`
	// Shim is the absolute path of a containerd shim (runtime v2) that runs the containers instead
	// of an engine: containerd-shim-runsc-v1 of gVisor, containerd-shim-kata-v2, those of runwasi.
	// Default: none.
	Shim string `toml:"shim"`
	// Options are what the shim gets with each container: the path of its configuration file, or a
	// table with type_url, the type of its options, and these. A table of the type
	// "containerd.runc.v1.Options" has the names that containerd's configuration has (BinaryName,
	// SystemdCgroup); of any other type it is passed as text in TOML. Default: none.
	Options *ShimOptions `toml:"options"`
	// Snapshot is how the shim gets root file systems: as a "directory" where crispd has mounted
	// them, or as "mounts", which the shim mounts itself, perhaps in a virtual machine. Default
	// "directory".
	Snapshot string `toml:"snapshot"`
	// Sandboxer makes the sandbox of each pod: "podsandbox" is a container of crisp's own in the
	// shim, "shim" the shim itself, by its Sandbox API, which Kata's in Rust has. Default
	// "podsandbox".
	Sandboxer string `toml:"sandboxer"`
	// DefaultCapabilities are the capabilities of a container that asks for none.
	// Default: the key of that name outside of the handlers.
	DefaultCapabilities []string `toml:"default_capabilities"`
	// SeccompProfile is a file that replaces the default profile. Default: the key of
	// that name outside of the handlers.
	SeccompProfile string `toml:"seccomp_profile"`
	// CgroupNamespace is "private" for containers that see their cgroup as the root, "host" for
	// containers that see the node's, or "auto": private on cgroup v2. Privileged containers
	// always see the node's. Default auto.
	CgroupNamespace string `toml:"cgroup_namespace"`
	// CNIConfDir is watched for the network configurations of this handler's pods, which never
	// use the default network. Default: none; they use the same network as all others.
	CNIConfDir string `toml:"cni_conf_dir"`
	// Annotations are the annotations of pods and containers that Engine or Shim gets, besides
	// io.kubernetes.cri.*, which it always gets: "run.oci.*", where * matches any characters but
	// /. They let any user who can create a pod decide how it is run. Default: none.
	Annotations []string `toml:"annotations"`

	Overhead Overhead `toml:"overhead"`
}

// Overhead is what the shim and its sandbox take themselves, for clients that ask crispd: a
// RuntimeClass with overhead.podFixed has its own.
type Overhead struct {
	// CPU is a Kubernetes quantity such as "250m". Default: none.
	CPU string `toml:"cpu"`
	// Memory is a Kubernetes quantity such as "120Mi". Default: none.
	Memory string `toml:"memory"`
}

// None as CAdvisorSocket disables it.
const None = "none"

// Libcontainer is the built-in engine.
const Libcontainer = "libcontainer"

// Origin returns where the value of key is set: "default", "flag --root" or
// "/etc/crisp/config.toml:12".
func (c *Config) Origin(key string) string {
	if o, ok := c.origin[key]; ok {
		return o
	}
	return "default"
}

// DefaultInstance reports whether this is the machine's default instance, which may use the
// well-known paths; others use only root and state.
func (c *Config) DefaultInstance() bool {
	return c.Root == DefaultRoot && c.State == Resolve(DefaultState)
}
