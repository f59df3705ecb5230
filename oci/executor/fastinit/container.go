package fastinit

import (
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/userns"
)

// A Setting is what Container needs besides the configuration.
type Setting struct {
	ID       string
	CgroupV2 bool
	// NoNodes is set where no device node can be made: they are bind mounts of the host's.
	NoNodes bool
	// Cgroups is a tree of the host that has the container's cgroups of version 1, for
	// /sys/fs/cgroup; "" = no such tree. With Later it is made while the child starts, which waits for it.
	Cgroups string
	Later   bool
}

// Container plans a container whose first process is q.
func Container(config *configs.Config, q Process, s Setting) (*Plan, error) {
	if !supported(config) || bindsDev(config) && q.Terminal {
		return nil, ErrUnsupported
	}
	p := &Plan{}
	p.proc(q)
	root, err := p.slot()
	if err != nil {
		return nil, err
	}
	propagation := unix.MS_PRIVATE | unix.MS_REC
	if config.RootPropagation != 0 {
		propagation = config.RootPropagation
	}
	p.tree(root, config.Rootfs, true, mountAttr{}, mountAttr{}, propagation, idMap{})
	slots, err := p.binds(config, s)
	if err != nil {
		return nil, err
	}
	s.NoNodes = s.NoNodes || config.Namespaces.Contains(configs.NEWUSER)
	nodes, err := p.bindNodes(config, s)
	if err != nil {
		return nil, err
	}
	if err := p.namespaces(config.Namespaces, s); err != nil {
		return nil, err
	}
	if err := p.mounts(config, slots, nodes); err != nil {
		return nil, err
	}
	p.add(stepRoot, "change the root directory", root)
	p.attach(config, slots, nodes)
	if !bindsDev(config) {
		p.add(stepDevNull, "open /dev/null")
	}
	if q.Cwd != "" {
		p.add(stepMakeCwd, "make working directory "+q.Cwd, q.Cwd)
	}
	p.terminal(q, true)
	if config.Readonlyfs {
		p.add(stepRootReadonly, "make the root directory read-only")
	}
	for _, name := range config.ReadonlyPaths {
		p.add(stepReadonly, "make "+name+" read-only", name)
	}
	masked := make(map[string]bool)
	for _, name := range config.MaskPaths {
		if clean := path.Clean(name); !masked[clean] {
			masked[clean] = true
			p.add(stepMask, "mask "+name, name, contextOf(config, "tmpfs"))
		}
	}
	if !config.NoNewKeyring {
		search := 0x80000 // by its owner
		if p.mapped {
			search = 0x8 // by others: the owner is not mapped
		}
		p.keyring(s.ID, q, search)
	}
	p.add(stepWait, "wait for the executor")
	return p, p.process(q, false)
}

// supported reports whether a configuration has only what Container supports.
func supported(c *configs.Config) bool {
	switch {
	case c.NoPivotRoot, c.ParentDeathSignal != 0, c.Umask != nil,
		c.Hostname != "", c.Domainname != "", c.RootlessEUID,
		len(c.NetDevices)+len(c.Networks)+len(c.Routes)+len(c.Sysctl)+len(c.TimeOffsets) > 0,
		c.IntelRdt != nil, c.MemoryPolicy != nil, c.Scheduler != nil, c.Personality != nil, c.IOPriority != nil, c.ExecCPUAffinity != nil,
		c.RootPropagation != 0 && c.RootPropagation != unix.MS_SLAVE|unix.MS_REC,
		!SeccompSupported(c.Seccomp):
		return false
	}
	for name, list := range c.Hooks {
		if len(list) > 0 && name != configs.Poststop {
			return false
		}
	}
	dev := slices.IndexFunc(c.Mounts, isDev)
	return bindsDev(c) || dev >= 0 && c.Mounts[dev].Device == "tmpfs" && c.Mounts[dev].Flags&unix.MS_RDONLY == 0 && inDev(c.Devices)
}

// bindsDev reports whether /dev is a bind mount, whose devices and links are as they are.
func bindsDev(c *configs.Config) bool {
	return slices.ContainsFunc(c.Mounts, func(m *configs.Mount) bool { return isDev(m) && m.IsBind() })
}

// inDev reports whether devices are in a file system at /dev, and so can be made before that is
// mounted.
func inDev(list []*devices.Device) bool {
	return !slices.ContainsFunc(list, func(d *devices.Device) bool {
		return d.Path != "" && (!strings.HasPrefix(d.Path, "/dev/") || path.Clean(d.Path) != d.Path || strings.HasPrefix(d.Path, "/dev/pts/"))
	})
}

// SeccompSupported reports whether a profile needs no listener.
func SeccompSupported(s *configs.Seccomp) bool {
	return s == nil || s.ListenerPath == "" && s.DefaultAction != configs.Notify &&
		!slices.ContainsFunc(s.Syscalls, func(c *configs.Syscall) bool { return c == nil || c.Action == configs.Notify })
}

// An idMap maps the IDs of a mount by a user namespace; "" = none.
type idMap struct {
	users     string
	recursive bool
}

// idMapOf returns how a mount's IDs are mapped; ok is false if not as the container's are.
func idMapOf(m *configs.Mount, config *configs.Config) (_ idMap, ok bool) {
	id, users := m.IDMapping, config.Namespaces.PathOf(configs.NEWUSER)
	switch {
	case id == nil:
		return idMap{}, true
	case users == "", id.UserNSPath != "" && id.UserNSPath != users:
		return idMap{}, false
	case id.UserNSPath == "" && !(slices.Equal(id.UIDMappings, config.UIDMappings) && slices.Equal(id.GIDMappings, config.GIDMappings)):
		return idMap{}, false
	}
	return idMap{users, id.Recursive}, true
}

// tree clones a tree of the host into a slot. top applies to its first mount, all to all of
// them.
func (p *Plan) tree(slot uint64, source string, recursive bool, top, all mountAttr, propagation int, ids idMap) {
	p.add(stepTree, "bind "+source, slot, recursive, top.set, top.clear, all.set, all.clear,
		propagation&^unix.MS_REC, propagation&unix.MS_REC != 0, ids.recursive, source, ids.users)
}

// binds clones the sources of the bind mounts and returns their slots, by the mount's index.
func (p *Plan) binds(config *configs.Config, s Setting) (map[int]uint64, error) {
	slots := make(map[int]uint64)
	var last []uint64 // by then the executor has had time to make it
	for i, m := range config.Mounts {
		v1 := m.Device == "cgroup" && !s.CgroupV2
		if m.Device != "bind" && !v1 {
			continue
		}
		slot, err := p.slot()
		if err != nil {
			return nil, err
		}
		slots[i] = slot
		if v1 {
			if s.Cgroups == "" {
				return nil, ErrUnsupported
			}
			last = append(last, slot)
			continue
		}
		if inProc(m.Destination) {
			return nil, ErrUnsupported // libcontainer knows what may be there
		}
		top, ok := bindAttr(m)
		if config.Namespaces.Contains(configs.NEWUSER) || userns.Own() != nil { // what the host has ruled out stays so, as by the locks that libcontainer meets
			top.clear &^= unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
		}
		ids, known := idMapOf(m, config)
		if !ok || !known || m.Extensions != 0 || m.Data != "" || m.Flags&unix.MS_REMOUNT != 0 {
			return nil, ErrUnsupported
		}
		var all mountAttr
		if r := m.RecAttr; r != nil {
			if r.Propagation != 0 || r.Userns_fd != 0 {
				return nil, ErrUnsupported
			}
			all = mountAttr{r.Attr_set, r.Attr_clr}
		}
		// A private clone would miss what the host mounts between the clone and its attachment,
		// although it should receive it.
		propagation := unix.MS_SLAVE | unix.MS_REC // the default, as with libcontainer
		switch n := len(m.PropagationFlags); {
		case n == 1 && m.PropagationFlags[0] == unix.MS_PRIVATE|unix.MS_REC:
			propagation = m.PropagationFlags[0]
		case n == 1 && m.PropagationFlags[0]&^unix.MS_REC == unix.MS_SLAVE: // mounts below it are slaves anyway
		case n > 0:
			return nil, ErrUnsupported
		}
		p.tree(slot, m.Source, m.Flags&unix.MS_REC != 0, top, all, propagation, ids)
	}
	if p.NeedsCgroups = s.Later && len(last) > 0; p.NeedsCgroups {
		p.add(stepWait, "wait for the executor")
	}
	for _, slot := range last {
		p.tree(slot, s.Cgroups, true, mountAttr{}, mountAttr{}, 0, idMap{})
	}
	return slots, nil
}

// bindNodes clones the host's devices of the same paths, where none can be made, and returns their
// slots.
func (p *Plan) bindNodes(config *configs.Config, s Setting) (map[string]uint64, error) {
	if !s.NoNodes || bindsDev(config) {
		return nil, nil
	}
	slots := make(map[string]uint64)
	for _, d := range config.Devices {
		if d.Path == "" || d.Path == "/dev/ptmx" {
			continue
		}
		slot, err := p.slot()
		if err != nil {
			return nil, err
		}
		slots[d.Path] = slot
		p.tree(slot, d.Path, false, mountAttr{}, mountAttr{}, unix.MS_SLAVE, idMap{})
	}
	return slots, nil
}

// inProc reports whether a path is at or below /proc.
func inProc(name string) bool {
	clean := path.Clean("/" + name)
	return clean == "/proc" || strings.HasPrefix(clean, "/proc/")
}

// flagOf are the namespaces that a container may create or join.
var flagOf = map[configs.NamespaceType]int{
	configs.NEWNET: unix.CLONE_NEWNET, configs.NEWIPC: unix.CLONE_NEWIPC, configs.NEWUTS: unix.CLONE_NEWUTS,
	configs.NEWPID: unix.CLONE_NEWPID, configs.NEWNS: unix.CLONE_NEWNS, configs.NEWCGROUP: unix.CLONE_NEWCGROUP,
	configs.NEWUSER: unix.CLONE_NEWUSER,
}

// namespaces appends the steps that put the child into its namespaces, and into a mount
// namespace without any of the host's mounts. A user namespace is joined once the host's rights are
// needed no more, and before it makes others, which then belong to it.
func (p *Plan) namespaces(list configs.Namespaces, s Setting) error {
	fresh, mounts, forks, users := 0, false, false, ""
	for _, ns := range list {
		flag, ok := flagOf[ns.Type]
		switch {
		case !ok, (ns.Type == configs.NEWNS || ns.Type == configs.NEWCGROUP) && ns.Path != "":
			return ErrUnsupported
		case ns.Type == configs.NEWNS:
			mounts = true
		case ns.Type == configs.NEWUSER:
			users, p.mapped = ns.Path, true
		case ns.Type == configs.NEWPID && ns.Path == "":
			p.newPID = true
		case ns.Type == configs.NEWCGROUP:
			if !s.CgroupV2 {
				return ErrUnsupported
			}
			p.JoinsEarly = true
		case ns.Path != "":
			p.add(stepJoinPath, "join namespace "+ns.Path, flag, ns.Path)
			forks = forks || ns.Type == configs.NEWPID
		default:
			fresh |= flag
		}
	}
	if !mounts || p.mapped && users == "" {
		return ErrUnsupported
	}
	what := "leave the host's mounts"
	if p.mapped {
		what += ", join namespace " + users
		if p.newPID {
			fresh, forks, p.newPID = fresh|unix.CLONE_NEWPID, true, false
		}
	}
	p.add(stepJoin, what, extraFD, unix.CLONE_NEWNS, users)
	p.add(stepUnshare, "make namespaces", fresh|unix.CLONE_NEWNS)
	if forks { // processes in there must not meet one that sees the host's mounts
		p.fork()
	}
	return nil
}

// mounts appends the steps that make new mounts, and adds their slots. In a user namespace a procfs
// or sysfs can be mounted only while another is visible, as in the namespace that the child has come
// from. Cgroups are last, for which the child waits: until then the executor makes them.
func (p *Plan) mounts(config *configs.Config, slots map[int]uint64, nodes map[string]uint64) error {
	for _, late := range []bool{false, true} {
		if late && p.JoinsEarly { // its current cgroup becomes the namespace's root
			p.add(stepWait, "wait for the executor")
			p.add(stepUnshare, "make cgroup namespace", unix.CLONE_NEWCGROUP)
		}
		for i, m := range config.Mounts {
			if _, isBind := slots[i]; isBind || late != (m.Device == "cgroup") {
				continue
			}
			if !mountable(m) || p.mapped && m.Device == "cgroup" && !p.JoinsEarly {
				return ErrUnsupported // a user namespace may mount the cgroups of its own cgroup namespace only
			}
			attr, ok := newAttr(m.Flags)
			if !ok {
				return ErrUnsupported
			}
			slot, err := p.slot()
			if err != nil {
				return err
			}
			kind := m.Device
			if kind == "cgroup" {
				kind = "cgroup2"
			}
			slots[i] = slot
			label := ""
			if kind == "mqueue" && selinux.GetEnabled() {
				label = config.MountLabel
			}
			p.add(stepMount, "mount "+m.Destination, slot, attr, kind, m.Source, append(options(m), contextOf(config, kind)...), label)
			if isDev(m) && !bindsDev(config) {
				p.devices(slot, config.Devices, nodes)
			}
		}
	}
	return nil
}

func isDev(m *configs.Mount) bool { return path.Clean(m.Destination) == "/dev" }

// attach appends the steps that attach all mounts below the root directory.
func (p *Plan) attach(config *configs.Config, slots map[int]uint64, nodes map[string]uint64) {
	for i, m := range config.Mounts {
		what, isNew := "mount "+m.Source+" at "+m.Destination, mountable(m)
		if isNew {
			what = "mount " + m.Destination
		}
		p.add(stepAttach, what, slots[i], isNew && (m.Device == "proc" || m.Device == "sysfs"), m.Destination)
		for _, d := range config.Devices {
			if slot, bound := nodes[d.Path]; bound && isNew && isDev(m) {
				p.add(stepAttach, "bind device "+d.Path, slot, false, d.Path)
			}
		}
	}
}

// mountable reports whether the child can make a mount without a source.
func mountable(m *configs.Mount) bool {
	if len(m.PropagationFlags) > 0 || m.RecAttr != nil || m.IDMapping != nil || m.Extensions != 0 {
		return false
	}
	switch m.Device {
	case "proc":
		return path.Clean(m.Destination) == "/proc"
	case "sysfs":
		return path.Clean(m.Destination) == "/sys"
	case "tmpfs": // else the mode would be that of the directory
		return slices.ContainsFunc(options(m), func(o string) bool { return strings.HasPrefix(o, "mode=") })
	case "devpts", "mqueue", "cgroup":
		return true
	}
	return false
}

// contextOf returns the option by which the files of a new mount get the container's SELinux label. As
// with libcontainer, those of the kernel's own file systems keep theirs.
func contextOf(config *configs.Config, kind string) []string {
	if config.MountLabel == "" || slices.Contains([]string{"proc", "sysfs", "cgroup2", "mqueue"}, kind) {
		return nil
	}
	return []string{"context=" + config.MountLabel}
}

func options(m *configs.Mount) []string {
	return slices.DeleteFunc(strings.Split(m.Data, ","), func(o string) bool { return o == "" })
}

// devLinks are the links in /dev, by name and target (runtime-linux.md, "Dev symbolic links").
var devLinks = sync.OnceValue(func() [][2]string {
	links := [][2]string{
		{"ptmx", "pts/ptmx"}, {"fd", "/proc/self/fd"},
		{"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
	}
	if _, err := os.Stat("/proc/kcore"); err == nil {
		links = append(links, [2]string{"core", "/proc/kcore"})
	}
	return links
})

// nodeModes are the types of device nodes, inode(7).
var nodeModes = map[devices.Type]uint32{
	devices.CharDevice: unix.S_IFCHR, 'u': unix.S_IFCHR, devices.BlockDevice: unix.S_IFBLK, devices.FifoDevice: unix.S_IFIFO,
}

// devices fills a /dev that is not mounted yet with what the runtime-spec requires there
// (config-linux.md, "Default Devices"), but for what is bound later.
func (p *Plan) devices(dev uint64, nodes []*devices.Device, bound map[string]uint64) {
	for _, d := range nodes {
		if _, later := bound[d.Path]; later || d.Path == "" || d.Path == "/dev/ptmx" {
			continue // for its cgroup rule only, or a link
		}
		p.add(stepNode, "make device "+d.Path, dev, strings.TrimPrefix(d.Path, "/dev/"), int(nodeModes[d.Type])|int(d.FileMode.Perm()),
			int(d.Major), int(d.Minor), int(d.Uid), int(d.Gid))
	}
	for _, l := range devLinks() {
		p.add(stepLink, "link /dev/"+l[0], dev, l[1], l[0])
	}
}

// A mountAttr is what mount_setattr(2) sets and clears.
type mountAttr struct{ set, clear uint64 }

// plainAttrs are the flags of mount(2) with their attributes.
var plainAttrs = []struct {
	flag int
	attr uint64
}{
	{unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY}, {unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID},
	{unix.MS_NODEV, unix.MOUNT_ATTR_NODEV}, {unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC},
	{unix.MS_NODIRATIME, unix.MOUNT_ATTR_NODIRATIME}, {unix.MS_NOSYMFOLLOW, unix.MOUNT_ATTR_NOSYMFOLLOW},
}

const atimeFlags = unix.MS_NOATIME | unix.MS_RELATIME | unix.MS_STRICTATIME | unix.MS_NODIRATIME

// newAttr converts the flags of a new mount; ok is false if a flag has no attribute.
func newAttr(flags int) (attr uint64, ok bool) {
	for _, a := range plainAttrs {
		if flags&a.flag != 0 {
			attr |= a.attr
			flags &^= a.flag
		}
	}
	switch {
	case flags&unix.MS_STRICTATIME != 0: // wins, as in mount(2)
		attr |= unix.MOUNT_ATTR_STRICTATIME
	case flags&unix.MS_NOATIME != 0:
		attr |= unix.MOUNT_ATTR_NOATIME
	}
	return attr, flags&^atimeFlags == 0
}

// bindAttr returns how a bind mount changes its source's attributes. If it requests any, all others
// are cleared, as with libcontainer, but those for access times only if it requests one of these
// (mount(2), MS_REMOUNT).
func bindAttr(m *configs.Mount) (mountAttr, bool) {
	flags := m.Flags &^ (unix.MS_BIND | unix.MS_REC)
	if flags == 0 && m.ClearedFlags == 0 {
		return mountAttr{}, true
	}
	set, ok := newAttr(flags)
	var clear uint64
	for _, a := range plainAttrs {
		if set&a.attr == 0 && (a.flag&atimeFlags == 0 || flags&atimeFlags != 0) {
			clear |= a.attr
		}
	}
	if flags&atimeFlags != 0 {
		clear |= unix.MOUNT_ATTR__ATIME
	}
	return mountAttr{set, clear}, ok
}
