// Package podspec translates pods to CRI: to configurations of sandboxes and containers, with
// their labels, resources and environment, and to /etc/hosts. It is pure: it reads no disk,
// calls no runtime and knows no clock. Everything that the translation depends on is in an
// Input, which the package criruntime gathers.
//
// It also parses the labels and annotations that the runtime keeps. With them an agent finds its
// pods again, and ends them with the hooks and grace periods that they were created with
// (labels.go).
//
// The golden files in testdata show how each field of a pod is translated.
package podspec

import (
	"time"

	"github.com/crisp-cri/crisp/internal/crilog"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Node is the state of the node that the translation depends on, at one moment.
type Node struct {
	Agent          string   // value of LabelAgent
	SeccompDir     string   // of the profiles of type Localhost, absolute
	ClusterDNS     []string // name servers for dnsPolicy ClusterFirst; without any, it means Default
	ClusterDomain  string   // suffix of the names of pods with a subdomain and, with ClusterDNS, of search domains
	SeccompDefault bool     // containers without a profile get RuntimeDefault
	NoCPUQuota     bool     // CPU limits are not enforced
	LogLimit       crilog.Limit
	Kernel         Kernel
	IPs            []string        // primary first; empty while unknown
	Allocatable    v1.ResourceList // for all pods together; nil if unknown
}

// A Kernel has the properties of the node's kernel that the translation depends on.
type Kernel struct {
	Memory    int64    // of the node, in bytes; 0 if unknown
	Unified   bool     // cgroup v2 alone
	Swap      bool     // swap can be limited
	SELinux   bool     // SELinux is on
	HugePages []string // sizes, as in the names of the hugetlb cgroup: "2MB"
	Throttles []string // directories with counts of thermal throttling, which are masked
}

// An Input is a pod and everything that its translation depends on.
type Input struct {
	Node Node
	Pod  *v1.Pod

	Dir           string             // of the pod's files, absolute
	LogDir        string             // of its logs, absolute
	Handler       string             // the runtime's handler, by the pod's RuntimeClass; "" is the default
	Overhead      v1.ResourceList    // of the RuntimeClass
	CgroupParent  string             // "" if the runtime makes the cgroup
	UserNamespace *cri.UserNamespace // mode and IDs of the pod's user namespace
	DNS           NodeDNS
	IPs           []string // of the pod's sandbox, primary first; the node's for pods on its network

	// RecursiveReadOnly says that the handler supports recursive read-only mounts.
	RecursiveReadOnly bool
}

// A Container is a container to create.
type Container struct {
	Spec     *v1.Container
	Attempt  uint32
	Backoff  time.Duration // that preceded its start
	Target   string        // ID of the container whose PID namespace it shares; "" is none
	Image    *cri.Image
	ImageRef string // the runtime's reference for Image

	Env         []*cri.KeyValue // made by Environment
	Sources     []Source        // one for each of Spec.VolumeMounts
	HostsFile   string          // path of the file to mount at /etc/hosts; "" for none
	ResolvFile  string          // path of the file to mount at /etc/resolv.conf; "" for the runtime's
	MessageFile string          // path of the file to mount at terminationMessagePath
}

// A Source is the source of one of a container's volume mounts.
type Source struct {
	Path     string // on this node; "" for an image
	Image    string // reference of the image; "" for anything else
	ReadOnly bool   // read-only whatever the container asks for
}

// References are the objects and files that a container's environment refers to. Those that do
// not exist are missing here.
type References struct {
	ConfigMaps map[string]*v1.ConfigMap // by name
	Secrets    map[string]*v1.Secret    // by name
	Files      map[FileRef]EnvFile
}

type FileRef struct{ Volume, Path string }

// An EnvFile is the content of a file of variables, or why it could not be read.
type EnvFile struct {
	Data []byte
	Err  error // fault.NotFound if there is no such file
}
