package node

//lint:file-ignore ST1005 the kubelet says it so, in the same reason of a pod's status

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/criruntime"
	v1 "k8s.io/api/core/v1"
)

// profiles lists the profiles that the kernel has loaded, one a line: NAME (MODE).
const profiles = "/sys/kernel/security/apparmor/profiles"

// checkAppArmor returns an error, with the kubelet's message, if a profile that the pod needs is
// not loaded. The runtime would report it only later.
func checkAppArmor(pod *v1.Pod) error {
	want := map[string]bool{}
	add := func(p *v1.AppArmorProfile) {
		if p != nil && p.Type == v1.AppArmorProfileTypeLocalhost && p.LocalhostProfile != nil {
			want[*p.LocalhostProfile] = true
		}
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		add(sc.AppArmorProfile)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.SecurityContext != nil {
			add(c.SecurityContext.AppArmorProfile)
		}
	}
	if len(want) == 0 {
		return nil
	}
	data, err := os.ReadFile(profiles)
	if errors.Is(err, fs.ErrNotExist) {
		return criruntime.Reasoned("AppArmor", errors.New("Cannot enforce AppArmor: AppArmor is not enabled on the host"))
	}
	if err != nil {
		return criruntime.Reasoned("AppArmor", fmt.Errorf("Cannot enforce AppArmor: %w", err))
	}
	for line := range strings.Lines(string(data)) { // NAME (MODE)
		if i := strings.LastIndex(line, " ("); i > 0 {
			delete(want, line[:i])
		}
	}
	for name := range want {
		return criruntime.Reasoned("AppArmor", fmt.Errorf("Cannot enforce AppArmor: profile %q is not loaded", name))
	}
	return nil
}
