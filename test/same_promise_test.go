package test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// Features that Debian's containerd lacks are compared with the promises of CRI and the kernel:
// random pods are run twice, the second time with one change. Their processes must see exactly the
// facts that follow from the change.
func TestSamePromises(t *testing.T) {
	testenv.Need(t, "namespaces")
	testenv.Need(t, "idmap")
	base := sameSources(t)
	ours, _ := startNode(t)
	t.Cleanup(func() { removeCgroups(sameCgroup) })
	sameImages(t, ours)
	seed, tried := sameNumber("SEED", 1), map[string]int{}
	for i := range sameNumber("SAME", 8) {
		d := &drawer{rand.New(rand.NewPCG(seed, i)), base}
		tw := d.twin(fmt.Sprintf("promise-%d", i))
		plain := seesOn(t, ours, tw)
		for _, p := range samePromises {
			changed := twin{proto.CloneOf(tw.sandbox), proto.CloneOf(tw.container)}
			if len(plain) == 1 || !p.change(changed) {
				continue
			}
			tried[p.name]++
			diff := sameDifference(seesOn(t, ours, changed), p.want(changed, plain))
			diff = slices.DeleteFunc(diff, func(s string) bool { return p.besides != nil && p.besides(changed, s) })
			if len(diff) > 0 {
				config, _ := protojson.Marshal(changed.container)
				pod, _ := protojson.Marshal(changed.sandbox)
				t.Errorf("SEED=%d, pod %d, %s (containerd is what was promised):\n%s\npod: %s\ncontainer: %s", seed, i, p.name, strings.Join(diff, "\n"), pod, config)
			}
		}
	}
	t.Logf("%v", tried)
}

// A samePromise is a change of a pod, and the changes that its processes must see.
type samePromise struct {
	name    string
	change  func(twin) bool // false if the change does not apply
	want    func(tw twin, plain []string) []string
	besides func(tw twin, diff string) bool // reports other expected differences
}

var samePromises = []samePromise{
	{"recursively read-only", recursively, func(tw twin, plain []string) []string {
		dest := regexp.QuoteMeta(tw.container.Mounts[0].ContainerPath)
		facts := rewrite(plain, `^(\w+ mount `+dest+`(?:/\S+)? root=\S+) rw,`, "$1 ro,")
		// Unlike an explicit ro it does not replace options of the source.
		return rewrite(facts, `^(\w+ mount `+dest+` root=\S+ ro)(,relatime .* tmpfs rw,size=1024k.*)`, "$1,nosuid$2")
	}, nil},
	{"mount options", restrictedMount, func(tw twin, plain []string) []string {
		return rewrite(plain, `^(\w+ mount `+regexp.QuoteMeta(tw.container.Mounts[0].ContainerPath)+` root=\S+ r[wo]),(?:nosuid,)?relatime `, "$1,nosuid,nodev,noexec,noatime ")
	}, nil},
	{"no groups of the image", func(tw twin) bool {
		tw.container.Linux.SecurityContext.SupplementalGroupsPolicy = cri.SupplementalGroupsPolicy_Strict
		return true
	}, strictGroups, nil},
	{"ambient capability", func(tw twin) bool {
		sc := tw.container.Linux.SecurityContext
		if sc.Privileged || sc.Capabilities == nil {
			return false
		}
		sc.Capabilities.AddAmbientCapabilities = []string{"NET_BIND_SERVICE"}
		return true
	}, ambient, nil},
	{"user namespace", mapped, func(tw twin, plain []string) []string {
		return predict(plain, tw, mappedReasons, map[string]int{})
	}, mappedBesides},
}

// recursively makes the mount recursively read-only, if there is only one.
func recursively(tw twin) bool {
	m := tw.container.Mounts
	if len(m) != 1 || m[0].Propagation != cri.MountPropagation_PROPAGATION_PRIVATE {
		return false
	}
	m[0].Readonly, m[0].RecursiveReadOnly = true, true
	return true
}

func restrictedMount(tw twin) bool {
	if len(tw.container.Mounts) != 1 || tw.container.Mounts[0].ContainerPath == "/sys" {
		return false
	}
	tw.container.Mounts[0].MountOptions = []string{"nosuid", "nodev", "noexec", "noatime"}
	return true
}

// rewrite replaces matches of pattern in facts.
func rewrite(facts []string, pattern, by string) (list []string) {
	re := regexp.MustCompile(pattern)
	for _, fact := range facts {
		list = append(list, re.ReplaceAllString(fact, by))
	}
	return list
}

// field returns the value of a line of proc_pid_status(5).
func field(facts []string, name string) string {
	for _, fact := range facts {
		if value, ok := strings.CutPrefix(fact, "init status "+name+" "); ok {
			return value
		}
	}
	return ""
}

func strictGroups(tw twin, plain []string) []string {
	gid, _ := strconv.ParseInt(strings.Fields(field(plain, "Gid"))[0], 10, 64)
	groups := append([]int64{gid}, tw.container.Linux.SecurityContext.SupplementalGroups...)
	slices.Sort(groups)
	text := strings.Trim(fmt.Sprint(slices.Compact(groups)), "[]")
	return rewrite(plain, `^(\w+ status Groups)(?: .*)?$`, "$1 "+text)
}

func ambient(tw twin, plain []string) []string {
	const bind = 1 << 10
	plain = rewrite(plain, `^(\w+ status Cap(?:Amb|Inh)) .*`, fmt.Sprintf("$1 %016x", bind))
	for _, set := range []string{"CapBnd", "CapPrm", "CapEff"} {
		have, _ := strconv.ParseUint(field(plain, set), 16, 64)
		if slices.ContainsFunc(tw.container.Linux.SecurityContext.Capabilities.DropCapabilities, func(c string) bool { return c == "NET_BIND_SERVICE" }) {
			continue
		}
		plain = rewrite(plain, `^(\w+ status `+set+`) .*`, fmt.Sprintf("$1 %016x", have|bind))
	}
	return plain
}

func mapped(tw twin) bool {
	ns := tw.sandbox.Linux.SecurityContext.NamespaceOptions
	if ns.Pid == cri.NamespaceMode_NODE || ns.Ipc == cri.NamespaceMode_NODE {
		return false
	}
	ids := []*cri.IDMapping{{HostId: 200000, ContainerId: 0, Length: 65536}}
	ns.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
	tw.container.Linux.SecurityContext.NamespaceOptions.UsernsOptions = ns.UsernsOptions
	return true
}

// mappedReasons explain the differences in a user namespace, where libcontainer starts containers.
var mappedReasons = []sameReason{
	{"the user namespace", nil, regexp.MustCompile(`^(\w+ namespace user) the host's$`), "$1 another"},
	{"the ID mappings", nil, regexp.MustCompile(`^(\w+ file /proc/self/[ug]id_map) +0 +0 +4294967295$`), "$1 0     200000      65536"},
	{"its root owns its mounts", nil, regexp.MustCompile(`^(\w+ mount (?:/dev(?:/shm)? root=/ .* tmpfs rw,size=65536k(?:,mode=755)?|/sys/fs/cgroup root=/ r[wo],nosuid,.* tmpfs rw,mode=755|/\S+ root=/ ro,relatime propagation=\S* tmpfs ro,size=4k,nr_inodes=1))$`), "$1,uid=200000,gid=200000"},
	{"its group tty", nil, regexp.MustCompile(`^(\w+ mount /dev/(?:pts|console) .*,gid=)5,`), "${1}200005,"},
	{"files of the sandbox are ID-mapped", nil, regexp.MustCompile(`^(\w+ mount /etc/(?:hosts|hostname|resolv\.conf) root=… r[wo],relatime)( .*)`), "$1,idmapped$2"},
	{"the source's options are locked", nil, regexp.MustCompile(`^(\w+ mount \S+ root=\S+ r[wo])(,relatime .* tmpfs rw,size=1024k.*)`), "$1,nosuid$2"},
	{"device nodes are bind mounts of the host's", nil, regexp.MustCompile(`^(\w+ dev /dev/(?:[^c]|c[^o])\S* [26]0\d{3}) \d+:\d+ `), "$1 65534:65534 "},
	{"a file of the host", func(tw twin) bool { return mountAt(tw, "/etc/resolv.conf") != nil }, regexp.MustCompile(`^(\w+ stat /etc/resolv.conf \d+) 0:0 `), "$1 65534:65534 "},
	{"a file of the host", func(tw twin) bool { return mountAt(tw, "/etc/hosts") != nil }, regexp.MustCompile(`^(\w+ stat /etc/hosts \d+) 0:0 `), "$1 65534:65534 "},
	{"a file of the host", nil, regexp.MustCompile(`^(\w+ dev /dev/termination-log \d+) 0:0 `), "$1 65534:65534 "},
	{"a directory of the host", func(tw twin) bool { return mountAt(tw, "/dev/shm") != nil }, regexp.MustCompile(`^(\w+ (?:dev|stat) /dev/shm 40755) 0:0 `), "$1 65534:65534 "},
	{"the host's /dev/null, see besides", nil, regexp.MustCompile(`^\w+ mount /\S+ root=… rw,nosuid propagation=\S* tmpfs rw,size=65536k,mode=755$`), ""},
	{"the kernel's files", nil, regexp.MustCompile(`^(\w+ stat (?:/proc/sys|/proc/kcore|/sys/firmware) (?:40|10|20)\d{3,4}) 0:0 `), "$1 65534:65534 "},
	{"groups of the host, which it does not have", func(tw twin) bool { return !ownNetwork(tw) }, regexp.MustCompile(`^(\w+ file /proc/sys/net/ipv4/ping_group_range) .*`), "$1 65534\t65534"},
	{"groups beyond its own do not exist", ownNetwork, regexp.MustCompile(`^(\w+ file /proc/sys/net/ipv4/ping_group_range) 0\t2147483647$`), "$1 0\t65535"},
	{"mounted with mount(2)", func(tw twin) bool {
		return ownNetwork(tw) && !tw.container.Linux.SecurityContext.Privileged && mountAt(tw, "/sys") == nil
	},
		regexp.MustCompile(`^(\w+ mount /sys root=/ .* sysfs) rw$`), "$1 ro"},
	{"no privileges over the host", nil, regexp.MustCompile(`^(\w+ call (?:syslog|swapon)) .*`), "$1 operation not permitted"},
	{"no privileges over the host's network and name", func(tw twin) bool { return !ownNetwork(tw) },
		regexp.MustCompile(`^(\w+ call (?:socket raw|socket packet|sethostname)) .*`), "$1 operation not permitted"},
}

// mappedBesides accepts mounts that only containers in user namespaces have: devices, masks by
// /dev/null, and the host's cgroups below the host's /sys.
func mappedBesides(tw twin, diff string) bool {
	return mappedDevice.MatchString(diff) || !ownNetwork(tw) && hostsCgroup.MatchString(diff)
}

var (
	mappedDevice = regexp.MustCompile(`^crispd only: \w+ mount (?:/dev/\S+ root=… rw(?:,nosuid,noexec)?,relatime propagation=\S* (?:[^d]\S*|devtmpfs) |/(?:proc|etc)/\S+ root=… rw,relatime propagation=\S* devtmpfs )`)
	hostsCgroup  = regexp.MustCompile(`^crispd only: \w+ mount /sys/fs/cgroup\S* root=/ r[wo],relatime `)
)
