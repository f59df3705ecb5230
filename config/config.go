// Package config reads crispd's configuration: one plain struct, fixed once it
// is loaded. Only cmd imports it; every other package takes plain options.
//
// A value comes from the first of these that gives it:
//
//	a flag of the command line          --root
//	a drop-in                           config.d/*.toml beside the file, the last in lexical order first
//	the configuration file              /etc/crisp/config.toml
//	the default                         which may follow from root and state
//
// A later value replaces an earlier one whole, lists too. What is not a key of
// ours, has the wrong type or makes no sense is an error that names the file and
// the line: a typing error must not become a default.
//
// Everything follows from root and state, so that two instances with different
// ones share nothing.
package config

import "time"

// Where the default instance is.
const (
	DefaultFile  = "/etc/crisp/config.toml"
	DefaultRoot  = "/var/lib/crisp"
	DefaultState = "/run/crisp"
)

// Config is the configuration in force. A field's tag is its key in TOML.
type Config struct {
	// Root holds what must survive a reboot: images, records, addresses.
	// An absolute path; default /var/lib/crisp.
	Root string `toml:"root"`
	// State holds what must not: mounts, namespaces, sockets. An absolute path
	// on a tmpfs; default /run/crisp.
	State string `toml:"state"`
	// Socket is the unix socket of the CRI. Default: crisp.sock in state.
	Socket string `toml:"socket"`
	// CgroupDriver is "systemd", "cgroupfs", or "auto": systemd where it runs the
	// host on cgroup v2. The kubelet asks for it and must use the same.
	CgroupDriver string `toml:"cgroup_driver"`
	// LogMaxLine is how long a line of a container's log may be, in bytes; longer
	// ones are split as CRI's format has it. Default 16384.
	LogMaxLine int `toml:"log_max_line"`
	// SeccompProfile is a file that replaces the built-in default profile
	// (RuntimeDefault). Default: none.
	SeccompProfile string `toml:"seccomp_profile"`
	// AppArmorProfile is the name of a loaded AppArmor profile for containers
	// that ask for RuntimeDefault or for nothing; "unconfined" does not confine
	// them. Default: "", which is crisp's own profile; crispd loads it.
	AppArmorProfile string `toml:"apparmor_profile"`
	// SELinux gives pods SELinux labels of their own where SELinux is on. Default
	// true.
	SELinux bool `toml:"selinux"`
	// DefaultCapabilities is what a container gets that asks for none, without
	// CAP_; an empty list means none. Default: the fourteen that container engines
	// agree on.
	DefaultCapabilities []string `toml:"default_capabilities"`
	// Rlimits are limits of every container, as "nofile=1024:524288" (soft:hard;
	// -1 = unlimited). Default: none, which leaves crispd's own.
	Rlimits []string `toml:"rlimits"`
	// DeviceOwnership gives a container's devices to its user instead of to the
	// host's owner, so that no root is needed to use them. Default false.
	DeviceOwnership bool `toml:"device_ownership_from_security_context"`

	// RejectMountSources are host paths that a container cannot mount when they are
	// missing; other ones are made. Default: none.
	RejectMountSources []string `toml:"reject_mount_sources"`
	// RestoreFromImages lets CreateContainer restore a container from a checkpoint
	// image, which whoever may make a pod can name: CRIU does as root what is in it.
	// Default false. Archives on this node and RestorePod, which pods cannot ask for, are always
	// restored.
	RestoreFromImages bool `toml:"restore_from_images"`
	// HooksDirs are searched for the files of oci-hooks(5), which add hooks to
	// containers; a later one wins. Default: /usr/share/containers/oci/hooks.d,
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

	// Handlers are the runtime handlers, for RuntimeClass, besides the default one,
	// which is "" and "crisp": each is a table [handlers.NAME].
	Handlers map[string]*Handler `toml:"handlers"`

	origin map[string]string
}

// Log is how crispd itself logs, to standard error.
type Log struct {
	// Level is "debug", "info", "warn" or "error". Default info.
	Level string `toml:"level"`
	// Format is "json", "text", or "auto": text on a terminal. Default auto.
	Format string `toml:"format"`
}

// CNI is where pod networks come from.
type CNI struct {
	// ConfDir is watched for network configurations. Default: /etc/cni/net.d, for
	// an instance with another root cni/net.d below that.
	ConfDir string `toml:"conf_dir"`
	// BinDirs are searched for plugins, the first one first. Default: crisp's own
	// plugins, /opt/cni/bin, /usr/lib/cni, /usr/libexec/cni.
	BinDirs []string `toml:"bin_dirs"`
	// DefaultNetwork makes crisp bring a network of its own where conf_dir has
	// none: true, false, or "auto", which is not while the kubelet of a cluster is
	// connected: its pods wait for the cluster's network. Default "auto".
	DefaultNetwork Auto `toml:"default_network"`
	// PodCIDRs are the subnets of the default network, at most one per family, in the
	// order of a pod's addresses. Default: one per family that follows from root and
	// state, IPv4 first.
	PodCIDRs []string `toml:"pod_cidrs"`
}

// CDI is the Container Device Interface.
type CDI struct {
	// SpecDirs are searched for vendors' descriptions of devices; a later one
	// wins. Default: /etc/cdi, /var/run/cdi, where vendors put them.
	SpecDirs []string `toml:"spec_dirs"`
}

// NRI is the Node Resource Interface: plugins that watch containers and change
// what these get.
type NRI struct {
	// Enabled lets plugins connect. Default true.
	Enabled bool `toml:"enabled"`
	// Socket is the unix socket where plugins connect. Default:
	// /var/run/nri/nri.sock, where they look for it, for an instance with another
	// root or state nri.sock in state. Plugins in /opt/nri/plugins are started, with
	// what /etc/nri/conf.d has for them, by the default instance only.
	Socket string `toml:"socket"`
}

// Streaming is the server of exec, attach and port-forward.
type Streaming struct {
	// Address is where it listens, host:port; port 0 is one that is free. It is
	// for the kubelet on this machine. Default 127.0.0.1:0.
	Address string `toml:"address"`
	// IdleTimeout closes a connection on which nothing moved for so long.
	// Default 4h.
	IdleTimeout time.Duration `toml:"idle_timeout"`
}

// Image is how images are pulled and kept.
type Image struct {
	// Pinned are names of images that the kubelet must not collect; * in one stands
	// for any characters. Default: none.
	Pinned []string `toml:"pinned"`
	// MaxParallel is how many layers one pull fetches and unpacks at once.
	// Default 4.
	MaxParallel int `toml:"max_parallel"`
	// ProgressTimeout ends a pull in which no byte arrived for so long; 0 never
	// does. Default 1m.
	ProgressTimeout time.Duration `toml:"progress_timeout"`
	// RegistriesConf is a registries.conf(5). Default:
	// $CONTAINERS_REGISTRIES_CONF, then /etc/containers/registries.conf.
	RegistriesConf string `toml:"registries_conf"`
	// HostsDirs are searched for the hosts.toml of containerd, by registry, if
	// registries.conf says nothing of it: "/etc/containerd/certs.d". Default: none.
	HostsDirs []string `toml:"hosts_dirs"`
	// Policy is a policy.json(5). Default: /etc/containers/policy.json; where
	// there is none every image is accepted.
	Policy string `toml:"policy"`
	// PolicyDir has policies of namespaces of Kubernetes, which count instead of the
	// node's: NAMESPACE.json. Default /etc/crisp/policies.
	PolicyDir string `toml:"policy_dir"`
	// RegistriesDir is a containers-registries.d(5), which says where signatures
	// are. Default: /etc/containers/registries.d.
	RegistriesDir string `toml:"registries_dir"`
	// AuthFile is a containers-auth.json(5). Default: $REGISTRY_AUTH_FILE, then
	// the usual places.
	AuthFile string `toml:"auth_file"`
	// AuthDir has credentials of namespaces of Kubernetes, which count instead of the
	// node's: NAMESPACE.json. Default /etc/crisp/auth.
	AuthDir string `toml:"auth_dir"`
	// DecryptionKeysPath is a directory of private keys for encrypted images.
	// Default /etc/crisp/keys.
	DecryptionKeysPath string `toml:"decryption_keys_path"`
}

// Metrics are crispd's own, in Prometheus' text format at /metrics. They are always
// to be had on the debug socket, which root alone can use.
type Metrics struct {
	// Address is where else they are served: host:port, or unix:///path. Who can
	// reach it can read them. Default: nowhere.
	Address string `toml:"address"`
}

// Tracing sends spans of calls, and of their slow stages, to an OpenTelemetry
// collector.
type Tracing struct {
	// Endpoint is a collector that speaks OTLP by gRPC: host:port or http://host:port
	// in the clear, https://host:port, or unix:///path. Default: none, and nothing is
	// traced.
	Endpoint string `toml:"endpoint"`
	// SamplesPerMillion is how many of a million calls begin a trace of their own; a
	// call that is part of its client's trace, as the kubelet's are, is sampled if
	// that is. Default 0.
	SamplesPerMillion int `toml:"samples_per_million"`
}

// Handler is what is different for the containers of one runtime handler.
type Handler struct {
	// Engine runs the containers: "libcontainer", which is built in, or the absolute
	// path of an OCI runtime such as runc or crun. Default libcontainer.
	Engine string `toml:"engine"`
	// DefaultCapabilities is what a container gets that asks for none. Default: the
	// key of that name outside of the handlers.
	DefaultCapabilities []string `toml:"default_capabilities"`
	// SeccompProfile is a file that replaces the default profile. Default: the key of
	// that name outside of the handlers.
	SeccompProfile string `toml:"seccomp_profile"`
	// CgroupNamespace is "private" for containers that see their cgroup as the root,
	// "host" for ones that see the node's, or "auto": private on cgroup v2. Privileged
	// containers always see the node's. Default auto.
	CgroupNamespace string `toml:"cgroup_namespace"`
	// CNIConfDir is watched for the network configurations of this handler's pods;
	// the default network is not for them. Default: none; they are in the same
	// network as all others.
	CNIConfDir string `toml:"cni_conf_dir"`
	// Annotations are the annotations of pods and containers that Engine gets, besides
	// io.kubernetes.cri.*, which it always gets: "run.oci.*", with * for any characters but /. Who may
	// make a pod decides by them how it is run. Default: none.
	Annotations []string `toml:"annotations"`
}

// Libcontainer is the engine that is built in.
const Libcontainer = "libcontainer"

// Origin says where the value of key came from: "default", "flag --root" or
// "/etc/crisp/config.toml:12".
func (c *Config) Origin(key string) string {
	if o, ok := c.origin[key]; ok {
		return o
	}
	return "default"
}

// DefaultInstance tells whether this is the machine's one instance, which may
// use the well-known places; every other one keeps to root and state.
func (c *Config) DefaultInstance() bool {
	return c.Root == DefaultRoot && c.State == DefaultState
}
