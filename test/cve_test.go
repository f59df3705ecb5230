package test

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/thread"
)

// The tests below are escapes from containers that other runtimes have had, each tried on
// the whole of crisp. More are in scripts; SECURITY.md lists them all.

// An attack is a node with a pod from which to attack.
type attack struct {
	*unified
	sandbox string
	count   uint32
}

func startAttack(t *testing.T) *attack {
	n, _ := startNode(t)
	u := &unified{node: n, t: t}
	config, err := u.sandboxConfig("p", nil)
	if err != nil {
		t.Fatal(err)
	}
	return &attack{unified: u, sandbox: u.run(config)}
}

// try starts a container, which edit may change; err is the reason if it did not start.
func (a *attack) try(edit func(*cri.ContainerConfig), command ...string) (id string, err error) {
	a.t.Helper()
	a.count++
	c := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "c", Attempt: a.count}, Image: &cri.ImageSpec{Image: testImage},
		Command: append([]string{"/testbin"}, command...), LogPath: fmt.Sprintf("%d.log", a.count),
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{}},
	}
	if edit != nil {
		edit(c)
	}
	made, err := a.runtime().CreateContainer(a.ctx(), &cri.CreateContainerRequest{PodSandboxId: a.sandbox, SandboxConfig: a.sandboxes["p"], Config: c})
	if err != nil {
		return "", err
	}
	_, err = a.runtime().StartContainer(a.ctx(), &cri.StartContainerRequest{ContainerId: made.ContainerId})
	return made.ContainerId, err
}

// exec returns a command's stdout and stderr, and its exit code.
func (a *attack) exec(id string, command ...string) (out string, code int32) {
	a.t.Helper()
	resp, err := a.runtime().ExecSync(a.ctx(), &cri.ExecSyncRequest{ContainerId: id, Cmd: append([]string{"/testbin"}, command...)})
	if err != nil {
		return err.Error(), -1
	}
	return string(resp.Stdout) + string(resp.Stderr), resp.ExitCode
}

// stillWorks checks that an ordinary container still starts.
func (a *attack) stillWorks() {
	a.t.Helper()
	id, err := a.try(nil, "sleep", "for-ever")
	if err != nil {
		a.t.Fatalf("an ordinary container after that: %v", err)
	}
	if out, code := a.exec(id, "print", "fine"); code != 0 || out != "fine\n" {
		a.t.Errorf("an ordinary container after that says %q, %d", out, code)
	}
}

// The destination of a mount is in a volume where a directory and a symlink to the host are
// exchanged all the time. The mount is made inside the container, or not at all (CVE-2021-30465).
func TestMountsStayInContainer(t *testing.T) {
	a := startAttack(t)
	volume, outside := t.TempDir(), t.TempDir()
	dir, link := filepath.Join(volume, "dir"), filepath.Join(volume, "link")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	started := 0
	for range 30 {
		id, err := a.try(func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{
				{HostPath: volume, ContainerPath: "/v"},
				{HostPath: t.TempDir(), ContainerPath: "/v/dir/destination"},
			}
		}, "sleep", "for-ever")
		if err == nil {
			started++
		}
		if id != "" {
			if _, err := a.runtime().RemoveContainer(a.ctx(), &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Fatal(err)
			}
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
			t.Fatalf("on the host there is now %v, %v", left, err)
		}
	}
	close(stop)
	<-stopped
	t.Logf("%d of 30 started", started)
	if started == 0 {
		t.Error("no container started: mounts outside could not be checked")
	}
	a.stillWorks()
}

// The output of an exec is truncated to the size limit of an answer. Neither crispd nor the
// executor buffers all of it (CVE-2022-1708).
func TestExecOutputIsBounded(t *testing.T) {
	a := startAttack(t)
	id, err := a.try(nil, "sleep", "for-ever")
	if err != nil {
		t.Fatal(err)
	}
	const flood = 512 // MiB
	out, code := a.exec(id, "flood", fmt.Sprint(flood))
	if code != 0 || len(out) < 1<<20 || len(out) > 16<<20 {
		t.Errorf("%d bytes of output, exit code %d", len(out), code)
	}
	executor, err := a.executorPid()
	if err != nil {
		t.Fatal(err)
	}
	for name, pid := range map[string]int{"crispd": a.cmd.Process.Pid, "the executor": executor} {
		var peak int
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "VmHWM:")
		if fmt.Sscan(rest, &peak); peak == 0 || peak > flood<<10/2 {
			t.Errorf("%s used up to %d kB for %d MiB of output", name, peak, flood)
		}
	}
	a.stillWorks()
}

// A working directory that leads through one of the runtime's descriptors must not be outside the
// container: neither for its first process, nor for execs after the container has replaced the
// directory by such a link (CVE-2024-21626).
func TestWorkingDirectoryIsNoDescriptor(t *testing.T) {
	a := startAttack(t)
	host, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, host, 0o644); err != nil {
		t.Fatal(err)
	}
	fromAnywhere := strings.Repeat("../", 12) + strings.TrimPrefix(secret, "/")
	seesHost := func(pid int) bool {
		_, err := os.Stat(filepath.Join("/proc", fmt.Sprint(pid), "cwd", fromAnywhere))
		return err == nil
	}

	// Both checks must detect a process that is outside.
	ordinary, err := a.try(nil, "sleep", "for-ever")
	if err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{"cat": string(host), "sleep": ""} {
		outside := exec.Command("/testbin", command, map[bool]string{true: fromAnywhere, false: "for-ever"}[command == "cat"])
		outside.SysProcAttr = &syscall.SysProcAttr{Chroot: fmt.Sprintf("/proc/%d/root", a.pid(ordinary))} // without chdir
		var out strings.Builder
		outside.Stdout = &out
		if err := outside.Start(); err != nil {
			t.Fatal(err)
		}
		if command == "sleep" {
			if !seesHost(outside.Process.Pid) {
				t.Error("a working directory outside was not noticed")
			}
			outside.Process.Kill()
		}
		if err := outside.Wait(); command == "cat" && err != nil || out.String() != want {
			t.Errorf("%s from outside wrote %q, %v; want %q", command, out.String(), err, want)
		}
	}
	for fd := range 20 {
		dir := fmt.Sprintf("/proc/self/fd/%d", fd)
		id, err := a.try(func(c *cri.ContainerConfig) { c.WorkingDir = dir }, "sleep", "for-ever")
		if err != nil {
			continue
		}
		if out, code := a.exec(id, "cat", fromAnywhere); code == 0 {
			t.Fatalf("from %s the host is visible: %s", dir, out)
		}
		if seesHost(a.pid(id)) {
			t.Fatalf("%s as working directory is outside", dir)
		}
	}

	// The container replaces its own working directory by the link.
	id, err := a.try(func(c *cri.ContainerConfig) { c.WorkingDir = "/work" }, "sleep", "for-ever")
	if err != nil {
		t.Fatal(err)
	}
	work := fmt.Sprintf("/proc/%d/root/work", a.pid(id))
	if err := os.Rename(work, work+".old"); err != nil {
		t.Fatal(err)
	}
	for fd := range 20 {
		if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", fd), work); err != nil {
			t.Fatal(err)
		}
		if out, code := a.exec(id, "cat", fromAnywhere); code == 0 {
			t.Fatalf("an exec by way of descriptor %d sees the host: %s", fd, out)
		}
		if err := os.Remove(work); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(work+".old", work); err != nil {
		t.Fatal(err)
	}
	if out, code := a.exec(id, "cwd"); code != 0 || out != "/work\n" {
		t.Errorf("with its directory back it works in %q, %d", out, code)
	}
}

// A volume at /dev contains its own null and console, which are symlinks. Paths masked with
// /dev/null stay masked, and the targets of the links are unchanged (CVE-2025-31133,
// CVE-2025-52565).
func TestDevicesThatAreLinks(t *testing.T) {
	a := startAttack(t)
	before, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	masked := []string{"/proc/version", "/proc/sys/kernel/ostype"}
	shown := func(id, path string) (wrong string) {
		if out, code := a.exec(id, "cat", path); code == 0 && out != "" {
			return fmt.Sprintf("shows %q", out)
		}
		// The mount there must be the null device, not a writable file.
		if out, code := a.exec(id, "stat", path); code == 0 && !strings.HasSuffix(out, " 1 3\n") {
			return fmt.Sprintf("is %q", out)
		}
		return ""
	}
	for _, hidden := range []bool{true, false} { // the check must detect a path that is not masked
		id, err := a.try(func(c *cri.ContainerConfig) {
			if hidden {
				c.Linux.SecurityContext.MaskedPaths = masked
			}
		}, "sleep", "for-ever")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range masked {
			if wrong := shown(id, path); (wrong == "") != hidden {
				t.Errorf("an ordinary container, masking it: %v, %s %s", hidden, path, wrong)
			}
			if out, code := a.exec(id, "stat", path); code != 0 || strings.HasSuffix(out, " 1 3\n") != hidden {
				t.Errorf("an ordinary container, masking it: %v, %s is %q", hidden, path, out)
			}
		}
	}
	for _, test := range []struct {
		name, link, target string
		tty                bool
	}{
		{"null", "null", "/proc/sys/kernel/core_pattern", false},
		{"null of the image", "null", "/etc/passwd", false},
		{"console", "console", "/proc/sys/kernel/core_pattern", true},
	} {
		volume := t.TempDir()
		if err := os.Symlink(test.target, filepath.Join(volume, test.link)); err != nil {
			t.Fatal(err)
		}
		for name, minor := range map[string]uint32{"null": 3, "zero": 5, "tty": 0} {
			if name != test.link {
				if err := unix.Mknod(filepath.Join(volume, name), unix.S_IFCHR|0o666, int(unix.Mkdev(map[bool]uint32{true: 5, false: 1}[name == "tty"], minor))); err != nil {
					t.Fatal(err)
				}
			}
		}
		if test.tty { // without a terminal it exits before it opens the console
			pts := filepath.Join(volume, "pts")
			if err := os.Mkdir(pts, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("devpts", pts, "devpts", 0, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Unmount(pts, unix.MNT_DETACH) })
			if err := os.Symlink("pts/ptmx", filepath.Join(volume, "ptmx")); err != nil {
				t.Fatal(err)
			}
		}
		id, err := a.try(func(c *cri.ContainerConfig) {
			c.Mounts, c.Tty = []*cri.Mount{{HostPath: volume, ContainerPath: "/dev"}}, test.tty
			c.Linux.SecurityContext.MaskedPaths = masked
		}, "sleep", "for-ever")
		if err != nil {
			t.Logf("%s: %v", test.name, err)
			continue
		}
		for _, path := range masked {
			if wrong := shown(id, path); wrong != "" {
				t.Errorf("%s: %s %s", test.name, path, wrong)
			}
		}
		if out, code := a.exec(id, "stat", "/proc/sys/kernel/core_pattern"); code != 0 || !strings.HasPrefix(out, "-rw-r--r-- 0 0") {
			t.Errorf("%s: core_pattern is %q now", test.name, out)
		}
	}
	if after, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err != nil || string(after) != string(before) {
		t.Errorf("the host's core_pattern is %q, %v", after, err)
	}
	a.stillWorks()
}

// No mount, not even one through a symlink, covers the files in /proc to which the runtime writes
// during a container's setup: a label or sysctl would be written to another file (CVE-2025-52881).
func TestNoMountsOverProc(t *testing.T) {
	a := startAttack(t)
	volume, fake := t.TempDir(), t.TempDir()
	if err := os.Symlink("/proc", filepath.Join(volume, "p")); err != nil {
		t.Fatal(err)
	}
	written := filepath.Join(fake, "exec")
	for _, path := range []string{"attr", "sys"} {
		if err := os.Mkdir(filepath.Join(fake, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{written, filepath.Join(fake, "attr/exec")} {
		touch(t, file)
	}
	over := func(id string) (found []string) {
		mounts, code := a.exec(id, "cat", "/proc/1/mountinfo")
		if code != 0 {
			t.Fatalf("mountinfo: %q, %d", mounts, code)
		}
		for line := range strings.Lines(mounts) {
			if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], "/proc/") && strings.Contains(fields[3], filepath.Base(fake)) {
				found = append(found, fields[4])
			}
		}
		return found
	}
	// The check must detect such a mount.
	planted, err := a.try(func(c *cri.ContainerConfig) {
		c.Mounts = []*cri.Mount{{HostPath: fake, ContainerPath: "/fake"}}
	}, "sleep", "for-ever")
	if err != nil {
		t.Fatal(err)
	}
	if found := over(planted); len(found) > 0 {
		t.Errorf("an ordinary container has mounts on %v", found)
	}
	if err := mountInside(a.pid(planted), "/fake/attr", "/proc/1/attr"); err != nil {
		t.Fatal(err)
	}
	if found := over(planted); !slices.Equal(found, []string{"/proc/1/attr"}) {
		t.Errorf("the check finds a mount on /proc/1/attr at %v", found)
	}
	for _, target := range []string{"/proc/self/attr", "/proc/thread-self/attr", "/proc/sys/kernel", "/proc/self", "/v/p/self/attr", "/v/p/sys", "/v/p/thread-self/attr/exec"} {
		source := fake
		if filepath.Base(target) == "exec" {
			source = written
		}
		id, err := a.try(func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{HostPath: volume, ContainerPath: "/v"}, {HostPath: source, ContainerPath: target}}
		}, "sleep", "for-ever")
		if err == nil {
			if found := over(id); len(found) > 0 {
				t.Errorf("a mount on %s is on %v", target, found)
			}
		} else {
			t.Logf("%s: %v", target, err)
		}
	}
	for _, file := range []string{written, filepath.Join(fake, "attr/exec")} {
		if data, err := os.ReadFile(file); err != nil || len(data) > 0 {
			t.Errorf("%s holds %q, %v", file, data, err)
		}
	}
	a.stillWorks()
}

// mountInside makes a bind mount in the mount namespace of a process, with paths of that namespace.
func mountInside(pid int, source, target string) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	return thread.Run(func() error {
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)
		}
		if err == nil {
			err = unix.Mount(source, target, "", unix.MS_BIND, "")
		}
		return err
	})
}

// A numeric user or group is that ID, even if the image has a user or group with that name
// (CVE-2016-3697).
func TestNumbersAreNoNames(t *testing.T) {
	a := startAttack(t)
	if err := a.useRegistry(newRegistry()); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(a.testbin)
	if err != nil {
		t.Fatal(err)
	}
	l, err := layer(
		[]*tar.Header{
			{Name: "testbin", Mode: 0o755, Typeflag: tar.TypeReg},
			{Name: "etc/", Mode: 0o755, Typeflag: tar.TypeDir},
			{Name: "etc/passwd", Mode: 0o644, Typeflag: tar.TypeReg},
			{Name: "etc/group", Mode: 0o644, Typeflag: tar.TypeReg},
		},
		[][]byte{program, nil, []byte("1000:x:0:0::/:/testbin\nroot:x:0:0::/:/testbin\n"), []byte("1000:x:0:\n")})
	if err != nil {
		t.Fatal(err)
	}
	image, err := imageOf(l)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.push("roots:latest", image); err != nil {
		t.Fatal(err)
	}
	ref := a.registry.host() + "/roots:latest"
	if _, err := a.images().PullImage(a.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	id, err := a.try(func(c *cri.ContainerConfig) {
		c.Image.Image = ref
		c.Linux.SecurityContext.RunAsUser, c.Linux.SecurityContext.RunAsGroup = &cri.Int64Value{Value: 1000}, &cri.Int64Value{Value: 1000}
	}, "sleep", "for-ever")
	if err != nil {
		t.Fatal(err)
	}
	if out, code := a.exec(id, "ids"); code != 0 || !strings.HasPrefix(out, "1000 1000 ") {
		t.Errorf("the container runs as %q", out)
	}
	a.stillWorks()
}
