package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// installed are the node's packages, besides Debian's minimal set.
var installed = []string{
	"systemd", "systemd-sysv", "dbus", "udev", "kmod", "linux-image-cloud-amd64",
	"apparmor", "ca-certificates", "criu", "crun", "iproute2", "iptables", "libseccomp2", "nftables", "procps", "runc", "zstd",
	"policycoreutils", "selinux-policy-default", // for the boot with SELinux
	"sudo",                                                         // critest loads AppArmor profiles with it
	"dmsetup",                                                      // for disks that lose writes that were not flushed
	"dbus-user-session", "libpam-systemd", "slirp4netns", "uidmap", // for users' own instances
}

// diskSize is the size of the root disk's file system; its file is sparse.
const diskSize = "6G"

// written are the files that configure the node. They are written before packages are installed, so
// that the initramfs is made once, and small.
var written = map[string]string{
	"etc/initramfs-tools/conf.d/vm":          "MODULES=list\nCOMPRESS=zstd\nRESUME=none\n",
	"usr/share/initramfs-tools/modules.d/vm": "virtio_pci\nvirtio_blk\next4\n",
	"etc/hostname":                           "node\n",
	"etc/hosts":                              "127.0.0.1 localhost node\n::1 localhost\n",
	"etc/fstab":                              "/dev/vda / ext4 defaults 0 1\n",
	"etc/systemd/system/crisp-tests.service": service,
	"etc/systemd/journald.conf.d/vm.conf":    "[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\n",
	"etc/systemd/system.conf.d/vm.conf":      "[Manager]\nDefaultTimeoutStopSec=30s\n",
	// An empty unit cannot be started: a login would take over the console.
	"etc/systemd/system/serial-getty@ttyS0.service": "",
	"etc/systemd/system-preset/50-crisp.preset":     "enable crisp-tests.service\ndisable apt-daily*.timer\n",
}

// service runs the payload once the node is up, and then shuts down.
const service = `[Unit]
Description=tests of crisp
After=multi-user.target dbus.service
[Service]
Type=exec
Environment=HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStartPre=/bin/mkdir -p /payload
ExecStartPre=/bin/mount /dev/vdb /payload
ExecStart=/bin/sh -c "exec /payload/vm inside /payload"
ExecStopPost=/bin/systemctl poweroff --force
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
KillMode=process
LimitNOFILE=1048576
TasksMax=infinity
Delegate=yes
[Install]
WantedBy=multi-user.target
`

// A disk is a root disk with its kernel and initramfs.
type disk struct{ image, kernel, initrd string }

// makeDisk returns the root disk for this program's lists, and makes it if the cache does not have
// it.
func makeDisk(ctx context.Context, cache string) (disk, error) {
	sum := sha256.New()
	release := suite()
	fmt.Fprintln(sum, release, installed, diskSize, written, policyModule) // maps print sorted
	dir := filepath.Join(cache, fmt.Sprintf("disk-%x", sum.Sum(nil)[:6]))
	d := disk{filepath.Join(dir, "root.img"), filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd.img")}
	if _, err := os.Stat(d.image); err == nil {
		fmt.Println("root disk: taken from", dir)
		return d, nil
	}
	old, _ := filepath.Glob(filepath.Join(cache, "disk-*"))
	for _, path := range append(old, dir) {
		if err := os.RemoveAll(path); err != nil {
			return d, err
		}
	}
	fmt.Printf("root disk: made of Debian %s in %s (some minutes)\n", release, dir)
	root := filepath.Join(dir, "root")
	for name, text := range written {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return d, err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return d, err
		}
	}
	if err := debootstrap(ctx, release, root, filepath.Join(dir, "debootstrap.log")); err != nil {
		return d, err
	}
	if out, err := exec.CommandContext(ctx, "chroot", root, "systemctl", "enable", "crisp-tests.service").CombinedOutput(); err != nil {
		return d, fmt.Errorf("enable the service of the tests: %w\n%s", err, out)
	}
	for from, to := range map[string]string{"boot/vmlinuz-*": d.kernel, "boot/initrd.img-*": d.initrd} {
		found, _ := filepath.Glob(filepath.Join(root, from))
		if len(found) != 1 {
			return d, fmt.Errorf("root disk: %s is %d files, want 1", from, len(found))
		}
		if err := os.Rename(found[0], to); err != nil {
			return d, err
		}
	}
	if err := labelRoot(ctx, root); err != nil {
		return d, err
	}
	// The image gets its name last, so that an incomplete one is not used.
	if err := format(ctx, root, d.image+".new", diskSize); err != nil {
		return d, err
	}
	if err := os.RemoveAll(root); err != nil {
		return d, err
	}
	return d, os.Rename(d.image+".new", d.image)
}

// suite returns the Debian release of the node: this machine's, because crispd is linked here and
// needs the same libc there, or a default on other distributions.
func suite() string {
	release, _ := os.ReadFile("/etc/os-release")
	text := string(release)
	if _, after, ok := strings.Cut(text, "VERSION_CODENAME="); ok && strings.Contains(text, "ID=debian\n") {
		name, _, _ := strings.Cut(after, "\n")
		return name
	}
	return "bookworm"
}

// contained makes a program start in namespaces of its own: its mounts and processes end with it,
// even if it fails or is interrupted.
func contained(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNS,
		Cloneflags:   syscall.CLONE_NEWPID,
		Pdeathsig:    syscall.SIGKILL,
	}
}

// mirror returns debootstrap's source of packages: $DEBIAN_MIRROR, or this machine's own, if it has
// the same release, or debootstrap's default.
func mirror(release string) []string {
	if m := os.Getenv("DEBIAN_MIRROR"); m != "" {
		return []string{m}
	}
	out, _ := exec.Command("apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages").Output()
	for line := range strings.Lines(string(out)) {
		if m, ok := strings.CutPrefix(strings.TrimSpace(line), release+" main http"); ok {
			return []string{"http" + m}
		}
	}
	return nil
}

func debootstrap(ctx context.Context, release, root, log string) error {
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.CommandContext(ctx, "debootstrap", "--variant=minbase", "--include="+strings.Join(installed, ","), release, root)
	cmd.Args = append(cmd.Args, mirror(release)...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	contained(cmd)
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log)
		return fmt.Errorf("this machine cannot make a root disk: debootstrap: %w\n%s", err, tail(string(text), 15))
	}
	return nil
}

// format makes an ext4 file system with the content of dir.
func format(ctx context.Context, dir, image, size string) error {
	out, err := exec.CommandContext(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", dir, image, size).CombinedOutput()
	if err != nil {
		return errors.Join(fmt.Errorf("mke2fs %s: %w\n%s", image, err, out), os.Remove(image))
	}
	return nil
}

// tail returns the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
