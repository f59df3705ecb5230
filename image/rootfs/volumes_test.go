package rootfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// A volume is a copy of the image's files at its path, of any kind.
func TestVolumeIsACopy(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.BuildOf(t, "gzip", v1.Image{}, imagetest.TarOf(t, map[string]string{"d/a": "1", "d/e/x": "1"}), imagetest.TarOf(t, map[string]string{"d/b": "2", "d/.wh.a": ""})))
	id := p.Pull(reg.Host + "/app").ID
	root := p.Mount("c", id)
	in := func(name string) string { return filepath.Join(root, "d", name) }
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(os.Chmod(in("."), os.ModeSticky|0o751))
	do(os.Chown(in("."), 12, 34))
	do(os.Chown(in("b"), 12, 34))
	do(os.Chmod(in("b"), os.ModeSetuid|0o755))
	do(os.Link(in("b"), in("again")))
	do(os.Symlink("/etc/passwd", in("link")))
	do(unix.Mkfifo(in("pipe"), 0o600))
	do(os.WriteFile(in(".wh.x"), []byte("no whiteout"), 0o600))
	do(unix.Setxattr(in("b"), "user.note", []byte("hello"), 0))
	do(os.WriteFile(in("sparse"), []byte("x"), 0o600))
	do(os.Truncate(in("sparse"), 64<<20))

	made, err := p.Store.RootFS().MakeVolumes(t.Context(), "c", rootfs.VolumesWanted{Paths: []string{"/d"}})
	do(err)
	if len(made) != 1 || made[0].Path != "/d" {
		t.Fatalf("volumes are %v", made)
	}
	if got, want := describe(t, made[0].Source), describe(t, in(".")); got != want {
		t.Errorf("the volume has\n%swant\n%s", got, want)
	}
	value := make([]byte, 16)
	n, err := unix.Getxattr(filepath.Join(made[0].Source, "again"), "user.note", value)
	if err != nil || string(value[:n]) != "hello" {
		t.Errorf("attribute is %q (err %v)", value[:max(n, 0)], err)
	}
	var one, two unix.Stat_t
	do(unix.Stat(filepath.Join(made[0].Source, "b"), &one))
	do(unix.Stat(filepath.Join(made[0].Source, "again"), &two))
	if one.Ino != two.Ino {
		t.Error("a hard link has become a file of its own")
	}
	do(unix.Stat(filepath.Join(made[0].Source, "sparse"), &one))
	if one.Size != 64<<20 || one.Blocks*512 > 32<<20 {
		t.Errorf("a sparse file of %d bytes occupies %d", one.Size, one.Blocks*512)
	}
	// The volume's content counts as usage, and is removed with the root file system.
	before, _, err := p.Store.RootFS().Usage("c")
	do(err)
	if before < uint64(one.Blocks*512) {
		t.Errorf("%d bytes are used, and the volume has more", before)
	}
	p.Reopen(image.Options{})
	do(p.Store.RootFS().Unmount(t.Context(), "c", true))
	if got := p.Names("rw"); len(got) != 0 {
		t.Errorf("writable layers %v are left", got)
	}
}

// A volume's path is resolved with the image's symlinks, and does not lead out of the
// image.
func TestVolumePaths(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.BuildOf(t, "gzip", v1.Image{}, imagetest.TarOf(t, map[string]string{"var/lib/db/x": "1", "file": "1"})))
	id := p.Pull(reg.Host + "/app").ID
	outside := t.TempDir()
	many := make([]string, 129)
	for i := range many {
		many[i] = fmt.Sprintf("/v%d", i)
	}
	for i, test := range []struct {
		name                     string
		paths, mounted, reserved []string
		want                     string // "" = refused
	}{
		{"as it is", []string{"/var/lib/db"}, nil, nil, "/var/lib/db"},
		{"relative", []string{"var/lib/../lib/db/"}, nil, nil, "/var/lib/db"},
		{"up", []string{"../../../var/lib/db"}, nil, nil, "/var/lib/db"},
		{"not there", []string{"/new/dir"}, nil, nil, "/new/dir"},
		{"link in the way", []string{"/short/db"}, nil, nil, "/var/lib/db"},
		{"link to the outside", []string{"/out/x"}, nil, nil, outside + "/x"},
		{"link upwards", []string{"/up/etc"}, nil, nil, "/etc"},
		{"twice", []string{"/short/db", "/var/lib/db"}, nil, nil, "/var/lib/db"},
		{"one in another", []string{"/var/lib/db", "/var/lib", "/var/lib-b"}, nil, nil, "/var/lib /var/lib-b"},
		{"mounted", []string{"/var/lib/db", "/b"}, []string{"/var/lib/db/"}, nil, "/b"},
		{"mounted by a link", []string{"/var/lib/db", "/b"}, []string{"/short/db"}, nil, "/b"},
		{"mounted above", []string{"/var/lib/db"}, []string{"/var/lib"}, nil, "/var/lib/db"},
		{"mounted below", []string{"/var/lib"}, []string{"/var/lib/db"}, nil, "/var/lib"},
		{"reserved", []string{"/proc", "/proc/sys", "/link-to-proc/x", "/processes"}, nil, []string{"/proc"}, "/processes"},
		{"root", []string{"/a/.."}, nil, nil, ""},
		{"link to the root", []string{"/up"}, nil, nil, ""},
		{"file", []string{"/file"}, nil, nil, ""},
		{"below a file", []string{"/file/x"}, nil, nil, ""},
		{"NUL", []string{"/a\x00b"}, nil, nil, ""},
		{"too long", []string{strings.Repeat("/abcdefg", 600)}, nil, nil, ""},
		{"endless link", []string{"/loop"}, nil, nil, ""},
		{"too many", many, nil, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			key := fmt.Sprintf("c%d", i)
			root := p.Mount(key, id)
			for name, to := range map[string]string{"short": "var/lib", "out": outside, "up": "../../..", "link-to-proc": "/proc", "loop": "loop"} {
				if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
					t.Fatal(err)
				}
			}
			made, err := p.Store.RootFS().MakeVolumes(t.Context(), key, rootfs.VolumesWanted{Paths: test.paths, Mounted: test.mounted, Reserved: test.reserved})
			if test.want == "" {
				if !errors.Is(err, fault.Invalid) {
					t.Errorf("error is %v, want one of kind %v", err, fault.Invalid)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range made {
				got = append(got, v.Path)
				if filepath.Dir(filepath.Dir(v.Source)) != filepath.Join(p.Root(), "rw", key) {
					t.Errorf("source is %s", v.Source)
				}
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("volumes are %v, want %s", got, test.want)
			}
			if err := p.Store.RootFS().Unmount(t.Context(), key, true); err != nil {
				t.Error(err)
			}
		})
	}
	if names, err := os.ReadDir(outside); err != nil || len(names) > 0 {
		t.Errorf("the directory outside has %v (err %v)", names, err)
	}
}

// What a container has written to its volumes, or removed there, is part of its diff: a
// container made from that has the same content in its volumes.
func TestDiffOfVolumes(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.BuildOf(t, "gzip", v1.Image{},
		imagetest.TarOf(t, map[string]string{"data/kept": "1", "data/gone": "1", "data/dir/x": "1", "data/turned/x": "1", "data/was/x": "1"})))
	id := p.Pull(reg.Host + "/app").ID
	p.Mount("from", id)
	want := rootfs.VolumesWanted{Paths: []string{"/data", "/new"}}
	volumes := func(key string) []rootfs.Volume {
		t.Helper()
		made, err := p.Store.RootFS().MakeVolumes(t.Context(), key, want)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	from := volumes("from")
	p.Reopen(image.Options{}) // the store must still know them
	data := func(name string) string { return filepath.Join(from[0].Source, name) }
	for _, err := range []error{
		os.WriteFile(data("kept"), []byte("changed"), 0o600),
		os.Remove(data("gone")),
		os.RemoveAll(data("dir")),
		os.RemoveAll(data("turned")), os.Symlink("was", data("turned")),
		os.WriteFile(data("mine"), nil, 0o640),
		os.WriteFile(filepath.Join(from[1].Source, "x"), []byte("new"), 0o600),
		os.Chown(from[1].Source, 12, 34),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var diff bytes.Buffer
	deleted, err := p.Store.RootFS().Diff(t.Context(), "from", &diff)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/data/dir", "/data/gone"}; !slices.Equal(deleted, want) {
		t.Errorf("removed names are %v, want %v", deleted, want)
	}
	p.Mount("to", id)
	if err := p.Store.RootFS().Apply(t.Context(), "to", &diff, deleted); err != nil {
		t.Fatal(err)
	}
	to := volumes("to")
	for i := range from {
		if got, want := describe(t, to[i].Source), describe(t, from[i].Source); got != want {
			t.Errorf("volume %s has\n%swant\n%s", to[i].Path, got, want)
		}
	}
	if got := imagetest.ReadFile(t, to[0].Source, "kept") + imagetest.ReadFile(t, to[1].Source, "x"); got != "changednew" {
		t.Errorf("files hold %q", got)
	}
}
