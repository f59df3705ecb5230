package fastinit

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// The program is looked for as with libcontainer, whose paths are clean: a program sees its own in
// AT_EXECFN, and a script as $0.
func TestFiles(t *testing.T) {
	for path, want := range map[string][]string{
		"/bin:/":                   {"/bin/x", "/x"},
		"/usr/local/bin/:/a/../b/": {"/usr/local/bin/x", "/b/x"},
		"::rel":                    {"x", "x", "rel/x"},
		"":                         nil,
	} {
		if got := (Process{Args: []string{"x"}, Env: []string{"A=b", "PATH=" + path}}).files(); !cmp.Equal(got, want) {
			t.Errorf("in PATH=%s: %s", path, cmp.Diff(want, got))
		}
	}
	if got := (Process{Args: []string{"./x"}, Env: []string{"PATH=/bin"}}).files(); got != nil {
		t.Errorf("a path is looked for in %q", got)
	}
}

// What the kernel would cut off at a NUL byte is left to libcontainer, which refuses it.
func TestNUL(t *testing.T) {
	config := &configs.Config{Namespaces: configs.Namespaces{{Type: configs.NEWNS}}}
	for _, q := range []Process{{Args: []string{"/x\x00y"}}, {Args: []string{"/x"}, Cwd: "/\x00"}, {Args: []string{"/x"}, Env: []string{"A=b\x00"}}} {
		if _, err := Exec(config, q, "id"); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if _, err := Exec(config, Process{Args: []string{"/x"}}, "id"); err != nil {
		t.Error(err)
	}
}

// The attributes of a bind mount become those of mount(2) with MS_REMOUNT, as libcontainer calls it.
func TestBindAttr(t *testing.T) {
	const others = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSYMFOLLOW
	for flags, want := range map[int]mountAttr{
		0:                   {},
		unix.MS_RDONLY:      {unix.MOUNT_ATTR_RDONLY, others &^ unix.MOUNT_ATTR_RDONLY},
		unix.MS_NOATIME:     {unix.MOUNT_ATTR_NOATIME, others | unix.MOUNT_ATTR_NODIRATIME | unix.MOUNT_ATTR__ATIME},
		unix.MS_RELATIME:    {0, others | unix.MOUNT_ATTR_NODIRATIME | unix.MOUNT_ATTR__ATIME},
		unix.MS_STRICTATIME: {unix.MOUNT_ATTR_STRICTATIME, others | unix.MOUNT_ATTR_NODIRATIME | unix.MOUNT_ATTR__ATIME},
		unix.MS_NODIRATIME:  {unix.MOUNT_ATTR_NODIRATIME, others | unix.MOUNT_ATTR__ATIME},
	} {
		if got, ok := bindAttr(&configs.Mount{Flags: unix.MS_BIND | flags}); !ok || got != want {
			t.Errorf("flags %#x: %+v, %v, want %+v", flags, got, ok, want)
		}
	}
}

// SELinux labels a program at its execve, its keyring, and the new mounts that have no labels of their
// own, with libcontainer's options.
func TestLabels(t *testing.T) {
	count := func(p *Plan, text string) int { return bytes.Count(p.data, append([]byte(text), 0)) }
	config := &configs.Config{
		MountLabel: "files:s0:c1,c2", Namespaces: configs.Namespaces{{Type: configs.NEWNS}}, MaskPaths: []string{"/proc/a"},
		Mounts: []*configs.Mount{
			{Destination: "/proc", Device: "proc"}, {Destination: "/dev", Device: "tmpfs", Data: "mode=755"}, {Destination: "/dev/pts", Device: "devpts"},
			{Destination: "/sys", Device: "sysfs"}, {Destination: "/dev/mqueue", Device: "mqueue"},
		},
	}
	q := Process{Args: []string{"/x"}, Label: "program:s0:c1,c2"}
	p, err := Container(config, q, Setting{ID: "id"})
	if err != nil {
		t.Fatal(err)
	}
	if n := count(p, "context=files:s0:c1,c2"); n != 3 {
		t.Errorf("%d mounts have the label, want /dev, /dev/pts and the mask", n)
	}
	exec, err := Exec(config, q, "id")
	if err != nil {
		t.Fatal(err)
	}
	for what, p := range map[string]*Plan{"container": p, "exec": exec} {
		if n := count(p, q.Label); n != 2 || count(p, "thread-self/attr/exec") != 1 || p.what[0] != "open the host's /proc" {
			t.Errorf("%s: the label is there %d times, want for the keyring and the program: %q", what, n, p.what)
		}
	}
	q.Label, config.MountLabel = "", ""
	if p, err := Container(config, q, Setting{ID: "id"}); err != nil || count(p, "thread-self/attr/exec") != 0 || bytes.Contains(p.data, []byte("context=")) {
		t.Errorf("without labels the plan has some, or %v", err)
	}
}

// Each field of libcontainer's configuration is carried out, or makes the fast init leave the
// container to libcontainer: a field that a later release adds must not be lost without a word.
func TestEveryFieldIsDecided(t *testing.T) {
	carried := []string{
		"Rootfs", "Readonlyfs", "Mounts", "Devices", "Namespaces", "Capabilities", "AppArmorProfile", "MaskPaths", "ReadonlyPaths",
		"Seccomp", "NoNewPrivileges", "NoNewKeyring", "ProcessLabel", "MountLabel",
		"Cgroups", "RootlessCgroups", "Rlimits", "OomScoreAdj", "UIDMappings", "GIDMappings", "Hooks", // by whoever starts it
		"Version", "Labels", // no part of the process
	}
	plain := func() *configs.Config {
		return &configs.Config{Mounts: []*configs.Mount{{Destination: "/dev", Device: "tmpfs"}}}
	}
	if !supported(plain()) {
		t.Fatal("a plain configuration is not supported")
	}
	for field := range reflect.TypeFor[configs.Config]().Fields() {
		config := plain()
		if slices.Contains(carried, field.Name) {
			continue
		}
		reflect.ValueOf(config).Elem().FieldByIndex(field.Index).Set(something(field.Type))
		if supported(config) {
			t.Errorf("the fast init neither carries out Config.%s nor refuses it", field.Name)
		}
	}
}

// something returns a value of the type that is not zero; a map or a list has one element.
func something(typ reflect.Type) reflect.Value {
	v := reflect.New(typ).Elem()
	switch typ.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(1)
	case reflect.String:
		v.SetString("x")
	case reflect.Pointer:
		v.Set(reflect.New(typ.Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(typ, 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(typ))
		v.SetMapIndex(reflect.Zero(typ.Key()), reflect.Zero(typ.Elem()))
	}
	return v
}
