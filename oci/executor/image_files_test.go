package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// traps are files that an image may have anywhere. To open or to read one has an effect on the host,
// or no end.
var traps = map[string]func(path string) error{
	"kernel log": func(path string) error { return os.Symlink("/proc/kmsg", path) },
	"sysfs":      func(path string) error { return os.Symlink("/sys/kernel/notes", path) },
	"fifo":       func(path string) error { return unix.Mkfifo(path, 0o755) },
	"device":     func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o755, int(unix.Mkdev(1, 5))) }, // zero(4)
	"huge":       func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o755), os.Truncate(path, 1<<40)) },
}

// Without HOME, both inits used to look into the image's passwd file, as root with every capability: a
// link to /proc/kmsg there emptied the host's kernel log, or kept the start from ending.
func TestTrapsInTheImage(t *testing.T) {
	n := startLogged(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for name, trap := range traps {
		for _, kind := range []string{"fast init", "libcontainer", "terminal"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				var opened func() int
				b := n.request([]string{"await", "/tmp/end"}, likeCRI, n.by(kind == "fast init"), func(r *wire.RunRequest, s *specs.Spec) {
					r.TTY = kind == "terminal"
					must(os.MkdirAll(filepath.Join(s.Root.Path, "etc"), 0o755))
					must(os.Chmod(filepath.Join(s.Root.Path, "tmp"), 0o777))
					var places []string
					for _, file := range []string{"etc/passwd", "etc/group", "etc/resolv.conf", "etc/ld.so.cache", "root"} {
						place := filepath.Join(s.Root.Path, file)
						must(trap(place))
						places = append(places, place)
					}
					opened = watchOpens(t, append(places, "/sys/kernel/notes"))
					s.Process.User = specs.User{UID: 1000, GID: 1000}
					s.Process.Env = []string{"PATH=/", "HOME="}
				})
				unread := markKernelLog(t)
				files, err := n.client.Call(ctx, wire.MethodRun, b.req, &b.reply)
				if err != nil {
					t.Fatal(err)
				}
				b.fds = files
				t.Cleanup(b.drop)
				b.startedBy(kind == "fast init")
				eventually(t, func() bool { // it is shown late in the execve
					env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", b.reply.Pid))
					return err == nil && strings.Contains(string(env), "HOME=/\x00")
				}, "HOME is not /")
				process, err := json.Marshal(&specs.Process{Args: []string{"testbin", "env", "HOME"}, Cwd: "/", Env: []string{"PATH=/"}, User: specs.User{UID: 1000}, Capabilities: &specs.LinuxCapabilities{}})
				must(err)
				for _, tty := range []bool{false, true} {
					var reply wire.ExecReply
					files, err := n.client.Call(ctx, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process, Fast: kind == "fast init", TTY: tty}, &reply)
					if err != nil {
						t.Fatal(err)
					}
					for _, f := range files {
						defer f.Close()
						if f.Name() == wire.FDStdout || f.Name() == wire.FDPTY {
							if got := strings.TrimSpace(line(t, f)); got != "/" {
								t.Errorf("an exec has HOME=%s", got)
							}
						}
					}
				}
				b.touch("tmp/end")
				b.wait()
				checkKernelLog(t, unread)
				if n := opened(); n > 0 {
					t.Errorf("files of the image were opened %d times", n)
				}
			})
		}
	}
}

// A trap as the program or the working directory is refused by both inits, once, and not opened.
func TestTrapsAsProgram(t *testing.T) {
	n := startLogged(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for name, trap := range traps {
		if name == "huge" {
			continue // a program that the kernel may look at, and a working directory like any file
		}
		for kind, set := range map[string]func(*specs.Process){
			"program":           func(p *specs.Process) { p.Args = []string{"/trap"} },
			"in PATH":           func(p *specs.Process) { p.Args = []string{"trap"} },
			"working directory": func(p *specs.Process) { p.Cwd = "/trap" },
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				for _, fast := range []bool{false, true} {
					var opened func() int
					unread := markKernelLog(t)
					b := n.request(nil, likeCRI, n.by(fast), func(_ *wire.RunRequest, s *specs.Spec) {
						place := filepath.Join(s.Root.Path, "trap")
						must(trap(place))
						opened = watchOpens(t, []string{place, "/sys/kernel/notes"})
						set(s.Process)
					})
					if _, err := n.client.Call(ctx, wire.MethodRun, b.req, &b.reply); err == nil || !strings.Contains(err.Error(), "trap") {
						t.Errorf("the start ends with %v", err)
					}
					up := n.run([]string{"sleep", "for-ever"}, likeCRI, func(_ *wire.RunRequest, s *specs.Spec) { must(trap(filepath.Join(s.Root.Path, "trap"))) })
					p := &specs.Process{Args: []string{"/testbin"}, Cwd: "/", Env: []string{"PATH=/"}, Capabilities: &specs.LinuxCapabilities{}}
					set(p)
					process, err := json.Marshal(p)
					must(err)
					var reply wire.ExecReply
					files, err := n.client.Call(ctx, wire.MethodExec, wire.ExecRequest{ID: up.id, Process: process, Fast: fast}, &reply)
					if err == nil { // the kernel alone knew
						e := &execed{box: up, ExecReply: reply}
						var said string
						for _, f := range files {
							if f.Name() == wire.FDStderr {
								said = line(t, f)
							}
							f.Close()
						}
						if code := e.wait(); code != 255 || said != "exec /trap: permission denied\n" {
							t.Errorf("the exec ends with %d: %s", code, said)
						}
					} else if !strings.Contains(err.Error(), "trap") {
						t.Errorf("the exec ends with %v", err)
					}
					checkKernelLog(t, unread)
					if n := opened(); n > 0 {
						t.Errorf("it was opened %d times", n)
					}
					if failure := failureOf(t, b.id) + failureOf(t, up.id); failure != "" {
						t.Errorf("libcontainer has tried again after %s", failure)
					}
				}
			})
		}
	}
}

// markKernelLog writes a line to the kernel's log and returns how many bytes are unread.
func markKernelLog(t *testing.T) int {
	t.Helper()
	if err := os.WriteFile("/dev/kmsg", []byte("crisp: "+t.Name()+"\n"), 0); err != nil {
		t.Log("the kernel's log cannot be written: ", err)
	}
	return unreadLog(t)
}

// unreadLog returns the size of what the next reader of /proc/kmsg would get, in bytes.
func unreadLog(t *testing.T) int {
	t.Helper()
	n, err := unix.Klogctl(9, nil) // SYSLOG_ACTION_SIZE_UNREAD, syslog(2)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// checkKernelLog fails the test if the log, with that many unread bytes, was read. A full log
// overwrites its oldest lines, so the number varies a little.
func checkKernelLog(t *testing.T, unread int) {
	t.Helper()
	if now := unreadLog(t); now < unread-2<<10 {
		t.Errorf("%d bytes of the kernel's log are unread, %d were", now, unread)
	}
}

// watchOpens counts how often files are opened, from now on. A link is not followed.
func watchOpens(t *testing.T, paths []string) (opened func() int) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(err)
	t.Cleanup(func() { unix.Close(fd) })
	for _, path := range paths {
		if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN|unix.IN_DONT_FOLLOW); err != nil {
			t.Fatal(err)
		}
	}
	return func() (count int) {
		buf := make([]byte, 64<<10)
		for n, _ := unix.Read(fd, buf); n > 0; n, _ = unix.Read(fd, buf) {
			for at := 0; at < n; at += unix.SizeofInotifyEvent + int((*unix.InotifyEvent)(unsafe.Pointer(&buf[at])).Len) {
				count++
			}
		}
		return count
	}
}
