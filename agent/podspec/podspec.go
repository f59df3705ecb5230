// Package podspec translates pods into what CRI wants: the configurations of sandboxes
// and containers, their labels, resources, environment and /etc/hosts. It is pure: it
// reads no disk, asks no runtime and knows no clock. What the translation depends on
// besides the pod is in an Input, which the package criruntime gathers.
//
// What a runtime keeps of it is read back here as well: the labels and annotations by
// which an agent finds its own pods again and ends them as it was promised (labels.go).
//
// The golden files in testdata show what becomes of each field of a pod.
package podspec

import (
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Node is what the pods of a node become depends on. It is a plain value: what is
// known of the node at one moment.
type Node struct {
	Agent          string   // value of LabelAgent
	SeccompDir     string   // of the profiles of type Localhost, absolute
	ClusterDNS     []string // name servers for dnsPolicy ClusterFirst; none: as Default
	ClusterDomain  string   // what the names of pods with a subdomain end in
	SeccompDefault bool     // RuntimeDefault for containers that name no profile
	NoCPUQuota     bool     // do not enforce CPU limits
	CPUPeriod      int64    // µs in which a CPU quota holds; 0 is 100000
	Kernel         Kernel
	IPs            []string        // primary first; none: not known yet
	Allocatable    v1.ResourceList // what all pods can have together; nil: not known
}

// A Kernel is what of a node's kernel the translation depends on.
type Kernel struct {
	Memory    int64    // of the node, in bytes; 0 if unknown
	Unified   bool     // cgroup v2 alone
	Swap      bool     // swap can be limited
	SELinux   bool     // SELinux is on
	HugePages []string // sizes, as in the names of the hugetlb cgroup: "2MB"
	Throttles []string // directories that count how often a CPU was throttled
}

// An Input is a pod and all that its translation depends on.
type Input struct {
	Node Node
	Pod  *v1.Pod

	Dir           string             // of the pod's files, absolute
	LogDir        string             // of its logs, absolute
	Handler       string             // of the runtime, by the pod's RuntimeClass; "" is the default
	Overhead      v1.ResourceList    // what the pod needs besides what its containers do
	CgroupParent  string             // "": the runtime makes the cgroup
	UserNamespace *cri.UserNamespace // whose IDs the pod has
	DNS           NodeDNS
	IPs           []string // of the pod's sandbox, primary first; on the node's network the node's

	// RecursiveReadOnly says that the handler can make what is mounted below a mount
	// read-only too.
	RecursiveReadOnly bool
}

// A Container is a container that is to be created.
type Container struct {
	Spec     *v1.Container
	Attempt  uint32
	Backoff  time.Duration // that precedes its start
	Target   string        // ID of the container whose processes it sees; "" is none
	Image    *cri.Image
	ImageRef string // by which it is created from Image

	Env         []*cri.KeyValue // by Environment
	Sources     []Source        // one for each of its mounts
	HostsFile   string          // path of what it has at /etc/hosts; "" is the image's
	MessageFile string          // path of what it has at its terminationMessagePath
}

// A Source is what is mounted in one place of a container.
type Source struct {
	Path     string // on this node; "" for an image
	Image    string // reference of the image; "" for anything else
	ReadOnly bool   // the volume may only be read, whatever the container says
}

// References are what the environment of a container refers to. What is not in them
// does not exist.
type References struct {
	ConfigMaps map[string]*v1.ConfigMap // by name
	Secrets    map[string]*v1.Secret    // by name
	Files      map[FileRef]EnvFile
}

// A FileRef names a file in a volume.
type FileRef struct{ Volume, Path string }

// An EnvFile is what a file of variables says, or why that is not known.
type EnvFile struct {
	Data []byte
	Err  error // of kind fault.NotFound if there is no such file
}
