package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// TestCheckDestinations tries the links with which an image makes CRIU mount a directory of the node
// in a restore (CVE-2026-119101).
func TestCheckDestinations(t *testing.T) {
	root := t.TempDir()
	for link, to := range map[string]string{"data": "/x]:/etc", "null": "x]:/dev/sda", "fine": "/srv/[a]", "top": "/"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		mount, kind, device, want string
	}{
		{"/data", "bind", "", "mount /data"},
		{root + "/data/sub", "bind", "", "/data/sub"},
		{"/x]:/etc", "bind", "", "mount /x]:/etc"},
		{"/top", "bind", "", "mount /top"},
		{"/fine", "bind", "/null", "device /null"},
		{"/fine", "bind", "/dev/null", ""},
		{"/data", "tmpfs", "", ""}, // CRIU mounts it itself
	} {
		cfg := &configs.Config{Rootfs: root, Mounts: []*configs.Mount{{Destination: c.mount, Device: c.kind}},
			Devices: []*devices.Device{{Path: c.device}}}
		if c.kind == "bind" {
			cfg.Mounts[0].Flags = unix.MS_BIND
		}
		err := checkDestinations(cfg)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("mount %s (%s), device %q: %v", c.mount, c.kind, c.device, err)
		case c.want != "" && (fault.KindOf(err) != fault.WrongState || !strings.Contains(err.Error(), c.want)):
			t.Errorf("mount %s (%s), device %q: %v, want WrongState with %q", c.mount, c.kind, c.device, err, c.want)
		}
	}
}
