package kubelet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podsCgroup is the parent cgroup of both drivers' pods. The kubelet requires that it exists. With
// systemd it is the slice of this name, which has no dash because that would make it a child of
// another slice.
const podsCgroup = "/crispkubelet"

// podsSlice is systemd's name for podsCgroup.
const podsSlice = "crispkubelet.slice"

// parent returns the cgroup_parent for a path below podsCgroup, in the format of the cgroup driver.
func (n *node) parent(names ...string) string {
	if !n.systemd {
		return filepath.Join(append([]string{podsCgroup}, names...)...)
	}
	unit, path := strings.TrimSuffix(podsSlice, ".slice"), podsSlice
	for _, name := range names {
		unit += "-" + strings.ReplaceAll(name, "-", "_") // systemd.slice(5)
		path = filepath.Join(path, unit+".slice")
	}
	return path
}

// asksForDriver asks crispd for the cgroup driver.
func (n *node) asksForDriver() {
	n.t.Helper()
	resp, err := cri.NewRuntimeServiceClient(n.conn).RuntimeConfig(n.t.Context(), &cri.RuntimeConfigRequest{})
	check(n.t, err)
	n.systemd = resp.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD
}

func (n *node) systemctl(verb, unit string) {
	n.t.Helper()
	if out, err := exec.Command("systemctl", verb, unit).CombinedOutput(); err != nil {
		n.t.Errorf("systemctl %s %s: %v\n%s", verb, unit, err, out)
	}
}

// startKubelet starts the kubelet without an API server. ports are its read-only port, its main
// port and its health port.
func (n *node) startKubelet(ports []int) {
	n.t.Helper()
	n.write("kubelet.yaml", fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%[1]s/proxy.sock
staticPodPath: %[1]s/manifests
podLogsDir: %[1]s/logs
volumePluginDir: %[1]s/volume-plugins
resolvConf: %[1]s/resolv.conf
clusterDomain: cluster.local
cgroupRoot: %[2]s
cgroupDriver: %[6]s
failCgroupV1: false
failSwapOn: false
registerNode: false
makeIPTablesUtilChains: false
seccompDefault: true
serializeImagePulls: false
maxParallelImagePulls: 3
address: 127.0.0.1
readOnlyPort: %[3]d
port: %[4]d
healthzBindAddress: 127.0.0.1
healthzPort: %[5]d
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
enforceNodeAllocatable: [pods]
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%", imagefs.inodesFree: "0%%"}
logging: {verbosity: 2}
`, n.dir, podsCgroup, ports[0], ports[1], ports[2], map[bool]string{true: "systemd", false: "cgroupfs"}[n.systemd]))
	n.start("kubelet", kubeletProgram(), append([]string{"--config", filepath.Join(n.dir, "kubelet.yaml"), "--root-dir", filepath.Join(n.dir, "root"),
		"--cert-dir", filepath.Join(n.dir, "pki"), "--hostname-override", nodeName}, n.flags...)...)
}

// kubeletProgram returns the path of the kubelet: KUBELET, or the one that make test-kubelet
// builds.
func kubeletProgram() string {
	path := os.Getenv("KUBELET")
	if path == "" {
		path = "../../.cache/kubelet"
	}
	path, err := filepath.Abs(path)
	if err != nil {
		panic(err)
	}
	return path
}

// hierarchies returns the root directories of the cgroup hierarchies: one for v2, several for v1.
func hierarchies() []string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup"}
	}
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*")
	return dirs
}

func (n *node) makeCgroups(name string) {
	if n.systemd {
		n.systemctl("start", podsSlice)
		return
	}
	for _, dir := range hierarchies() {
		_ = os.Mkdir(filepath.Join(dir, name), 0o755) // it exists already, or this is not a hierarchy
		if strings.HasSuffix(dir, "/cpuset") {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if data, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
					_ = os.WriteFile(filepath.Join(dir, name, file), data, 0o644)
				}
			}
		}
	}
}

// removeCgroups removes the cgroups of this name with all their descendants, deepest first.
func (n *node) removeCgroups(name string) {
	if n.systemd {
		n.systemctl("stop", podsSlice)
	}
	for _, dir := range hierarchies() {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(dir, name), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			_ = os.Remove(dirs[i])
		}
	}
}
