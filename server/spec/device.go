package spec

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// devices returns the device nodes to create and the rules of the device cgroup. libcontainer
// adds the nodes that every container has (null, zero, tty, …), and their rules.
func devices(in Input) ([]specs.LinuxDevice, []specs.LinuxDeviceCgroup) {
	var nodes []specs.LinuxDevice
	rules := []specs.LinuxDeviceCgroup{{Allow: privileged(in), Access: "rwm"}}
	for _, d := range in.Devices {
		node := d.LinuxDevice
		if in.Host.DevicesFromUser && !privileged(in) {
			uid, gid := in.User.UID, in.User.GID
			node.UID, node.GID = &uid, &gid
		}
		if in.IDs == nil && !in.Host.NoNodes || d.Source == "" || d.Source == d.Path {
			nodes = append(nodes, node)
		} // else deviceMounts has it
		if !privileged(in) {
			major, minor := d.Major, d.Minor
			rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: &major, Minor: &minor, Access: d.Access})
		}
	}
	return nodes, rules
}
