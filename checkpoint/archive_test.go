package checkpoint

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/crisp-cri/crisp/test/treetest"
)

// sample returns a directory with the files of a checkpoint.
func sample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, Images), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		Images + "/inventory.img": "criu", Images + "/pages-1.img": strings.Repeat("page", 5000), DumpLog: "log", RootFSDiff: "diff",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(Write(dir, ConfigDump, Container{ID: "1", RootfsImageName: "busybox"}), Write(dir, SpecDump, map[string]string{"ociVersion": "1"})); err != nil {
		t.Fatal(err)
	}
	return dir
}

func file(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A packed checkpoint is unpacked again, plain or compressed, except for files that a restore does
// not need.
func TestArchiveRoundTrip(t *testing.T) {
	from := sample(t)
	archive := filepath.Join(t.TempDir(), "c.tar")
	for range 2 { // the second call replaces the archive
		if err := Pack(t.Context(), from, archive); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(archive)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode is %v, want 0600 (err %v)", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(archive)); len(entries) != 1 {
		t.Errorf("beside the archive there is %v", entries)
	}
	plain := []byte(file(t, archive))
	for name, compress := range map[string]func(io.Writer) io.WriteCloser{
		"plain": func(w io.Writer) io.WriteCloser { return nopCloser{w} },
		"gzip":  func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"zstd": func(w io.Writer) io.WriteCloser {
			z, err := zstd.NewWriter(w)
			if err != nil {
				t.Fatal(err)
			}
			return z
		},
	} {
		var b bytes.Buffer
		w := compress(&b)
		if _, err := w.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := Unpack(t.Context(), &b, dir, 1<<20); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		checkSample(t, name, dir)
	}
	dir := t.TempDir()
	if err := Copy(t.Context(), from, dir, 1<<20); err != nil {
		t.Fatal(err)
	}
	checkSample(t, "copy", dir)
}

func checkSample(t *testing.T, what, dir string) {
	t.Helper()
	if got := file(t, dir, Images, "pages-1.img"); len(got) != 20000 {
		t.Errorf("%s: the pages have %d bytes", what, len(got))
	}
	var c Container
	if err := Read(dir, ConfigDump, &c); err != nil || c.RootfsImageName != "busybox" {
		t.Errorf("%s: config is %+v (err %v)", what, c, err)
	}
	if _, err := os.Stat(filepath.Join(dir, DumpLog)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: the log is in the archive, too (err %v)", what, err)
	}
	if err := Read(dir, CrispDump, &c); !errors.Is(err, fault.NotFound) {
		t.Errorf("%s: error is %v, want one of kind %v", what, err, fault.NotFound)
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// tarOf returns a tar of the entries; the content is as long as the header says.
func tarOf(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Mode = 0o600
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// Unpacking an archive of unknown origin writes nothing outside of the directory, only files of a
// checkpoint, and no more than the given size.
func TestUnpackHostile(t *testing.T) {
	reg := func(name string, size int64) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Size: size}
	}
	short := tarOf(t, reg(ConfigDump, 4096))
	short.Truncate(1000)
	for name, c := range map[string]struct {
		archive io.Reader
		refused bool
	}{
		"nothing":              {strings.NewReader(""), true},
		"no archive":           {strings.NewReader(strings.Repeat("x", 4096)), true},
		"cut short":            {short, true},
		"link as config":       {tarOf(t, tar.Header{Name: ConfigDump, Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), true},
		"hard link":            {tarOf(t, tar.Header{Name: SpecDump, Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}), true},
		"device":               {tarOf(t, tar.Header{Name: Images + "/a", Typeflag: tar.TypeChar}), true},
		"directory as link":    {tarOf(t, tar.Header{Name: Images, Typeflag: tar.TypeSymlink, Linkname: "/tmp"}), false},
		"name twice":           {tarOf(t, reg(ConfigDump, 1), reg("./"+ConfigDump, 1)), true},
		"too large":            {tarOf(t, reg(Images+"/pages-1.img", 3000)), true},
		"too large together":   {tarOf(t, reg(Images+"/a", 600), reg(Images+"/b", 600)), true},
		"bomb":                 {bomb(t), true},
		"above":                {tarOf(t, reg("../evil", 1), reg("/evil", 1), reg(Images+"/../../evil", 1), reg(Images+"/..", 1)), false},
		"below":                {tarOf(t, reg(Images+"/x/evil", 1), reg("evil", 1), reg("container.log", 1)), false},
		"name that is no name": {tarOf(t, reg(Images+"/"+strings.Repeat("n", 300), 1)), true},
	} {
		top := t.TempDir()
		dir := filepath.Join(top, "dir")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		err := Unpack(t.Context(), c.archive, dir, 1000)
		if c.refused != errors.Is(err, fault.Invalid) || !c.refused && err != nil {
			t.Errorf("%s: error is %v; refused = %t wanted", name, err, c.refused)
		}
		filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
			if strings.Contains(path, "evil") || err == nil && d.Type()&os.ModeSymlink != 0 {
				t.Errorf("%s: it made %s", name, path)
			}
			return err
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Unpack(ctx, tarOf(t, reg(ConfigDump, 1)), t.TempDir(), 1000); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want that of the context", err)
	}
	// Files that belong to no checkpoint are skipped, and that can be cancelled.
	ctx, cancel = context.WithCancel(t.Context())
	cut := &cutting{Reader: tarOf(t, reg("elsewhere", 8<<20)), cut: cancel}
	if err := Unpack(ctx, cut, t.TempDir(), 1000); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want that of the context", err)
	}
	if left, _ := io.Copy(io.Discard, cut.Reader); left == 0 {
		t.Error("the whole archive was read")
	}
}

// A cutting reader calls cut when it has been read from twice.
type cutting struct {
	io.Reader
	reads int
	cut   func()
}

func (c *cutting) Read(p []byte) (int, error) {
	if c.reads++; c.reads == 2 {
		c.cut()
	}
	return c.Reader.Read(p[:min(len(p), 64<<10)])
}

// bomb returns a small archive of a large file.
func bomb(t *testing.T) io.Reader {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.Copy(z, tarOf(t, tar.Header{Name: Images + "/pages-1.img", Typeflag: tar.TypeReg, Size: 8 << 20})); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// A checkpoint image is an untrusted directory: its symlinks are not followed.
func TestCopyHostile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ConfigDump, Images, Images + "/a"} {
		from := t.TempDir()
		if name != Images {
			if err := os.Mkdir(filepath.Join(from, Images), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		target := secret
		if name == Images {
			target = filepath.Dir(secret)
		}
		if err := os.Symlink(target, filepath.Join(from, name)); err != nil {
			t.Fatal(err)
		}
		if err := Copy(t.Context(), from, t.TempDir(), 1000); !errors.Is(err, fault.Invalid) {
			t.Errorf("link at %s: error is %v, want one of kind %v", name, err, fault.Invalid)
		}
	}
}

// A failed Pack leaves no file, not even a part of one.
func TestPackFails(t *testing.T) {
	from, to := sample(t), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Pack(ctx, from, filepath.Join(to, "c.tar")); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want that of the context", err)
	}
	if err := Pack(t.Context(), from, filepath.Join(to, "none", "c.tar")); err == nil {
		t.Error("the archive was written into a missing directory")
	}
	if entries, err := os.ReadDir(to); err != nil || len(entries) > 0 {
		t.Errorf("there is %v (err %v)", entries, err)
	}
}

// On a file system without O_TMPFILE, an archive is written all the same; it replaces an existing
// one, and a failed Pack leaves no file.
func TestPackWithoutTmpfile(t *testing.T) {
	before := openTmpfile
	openTmpfile = func(string) (int, error) { return -1, unix.EOPNOTSUPP }
	t.Cleanup(func() { openTmpfile = before })
	dir, to := sample(t), t.TempDir()
	file := filepath.Join(to, "archive.tar")
	for range 2 {
		if err := Pack(t.Context(), dir, file); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(file); err != nil || info.Mode() != 0o600 || info.Size() == 0 {
			t.Fatalf("the archive is %v (err %v)", info, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := Pack(t.Context(), filepath.Join(dir, "missing"), file); err == nil {
		t.Error("a missing directory was packed")
	}
	if left, err := os.ReadDir(to); err != nil || len(left) != 0 {
		t.Errorf("%v is left (err %v)", left, err)
	}
}

// Files of /dev/shm are restored with their owners and modes; existing ones stay, and
// none leaves the directory.
func TestFilesRoundTrip(t *testing.T) {
	testenv.NeedRoot(t, "it gives files away")
	from, to := t.TempDir(), t.TempDir()
	err := errors.Join(
		os.Mkdir(filepath.Join(from, "d"), 0o750), os.WriteFile(filepath.Join(from, "d", "x"), []byte("x"), 0o640),
		os.Chown(filepath.Join(from, "d", "x"), 12, 34), os.WriteFile(filepath.Join(from, "kept"), []byte("theirs"), 0o600),
		os.WriteFile(filepath.Join(to, "kept"), []byte("ours"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := PackFiles(t.Context(), from, &b); err != nil {
		t.Fatal(err)
	}
	if err := UnpackFiles(t.Context(), &b, to); err != nil {
		t.Fatal(err)
	}
	if got := file(t, to, "d", "x") + file(t, to, "kept"); got != "xours" {
		t.Errorf("files hold %q", got)
	}
	info, err := os.Stat(filepath.Join(to, "d", "x"))
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("mode is %v (err %v)", info.Mode(), err)
	}
	for _, name := range []string{"../evil", "d/../../evil", "kept/x", "no/parent", strings.Repeat("x", 256)} {
		if err := UnpackFiles(t.Context(), tarOf(t, tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 1}), to); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want Invalid: a restore tells whose mistake it was", name, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(filepath.Dir(to), "evil")); err == nil {
		t.Error("a file was made outside of the directory")
	}
}

// Other containers of the pod may write to /dev/shm meanwhile. If one replaces a file with a link
// or a fifo, no file of the host gets into the archive, and Pack does not block.
func TestFileReplacedWhileItIsPacked(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	from := t.TempDir()
	for _, name := range []string{"a", "b", "c", "d"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	err := tree.Walk(t.Context(), from, tree.Options{Sorted: true}, func(f *tree.File) error {
		path := filepath.Join(from, f.Name)
		switch f.Name {
		case "a":
			if err := errors.Join(os.Remove(path), os.Symlink(secret, path)); err != nil {
				return err
			}
		case "b":
			if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
				return err
			}
		case "c":
			if err := os.Remove(path); err != nil {
				return err
			}
		}
		return add(tw, f)
	})
	if err := errors.Join(err, tw.Close()); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if err := UnpackFiles(t.Context(), &b, to); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(to)
	if err != nil || len(entries) != 1 || file(t, to, "d") != "mine" {
		t.Errorf("the archive has %v, err %v", entries, err)
	}
}

// A directory tree that is too deep for a path only makes the checkpoint fail, with a short
// error.
func TestDeepTreeIsNotPacked(t *testing.T) {
	from := treetest.Dir(t)
	treetest.Deep(t, from, "d", 3000)
	err := PackFiles(t.Context(), from, io.Discard)
	if !errors.Is(err, fault.Invalid) || len(err.Error()) > 300 {
		t.Errorf("error of %d bytes: %.400v", len(fmt.Sprint(err)), err)
	}
}

// containerd stores the root file system's changes as a layer of an image.
func TestPlainDiff(t *testing.T) {
	var layer bytes.Buffer
	z := gzip.NewWriter(&layer)
	tw := tar.NewWriter(z)
	for _, name := range []string{"etc/", "etc/new", "etc/.wh.old", "var/data/", "var/data/.wh..wh..opq", "var/data/a"} {
		hdr := &tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg, Size: 4, Uid: 7}
		if strings.HasSuffix(name, "/") {
			hdr.Typeflag, hdr.Size, hdr.Mode = tar.TypeDir, 0, 0o755
		}
		if strings.Contains(name, ".wh.") {
			hdr.Size = 0
		}
		if err := tw.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if hdr.Size > 0 {
			io.WriteString(tw, "text")
		}
	}
	if err := errors.Join(tw.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, RootFSDiff)
	if err := os.WriteFile(file, layer.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := PlainDiff(t.Context(), dir, 7); !errors.Is(err, fault.Invalid) {
		t.Errorf("no room: got %v", err)
	}
	os.Remove(file + ".plain")
	removed, err := PlainDiff(t.Context(), dir, 8)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/etc/old", "/var/data/"}; !slices.Equal(removed, want) {
		t.Errorf("removed %q, want %q", removed, want)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var names []string
	for tr := tar.NewReader(f); ; {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, hdr.Name)
		if data, err := io.ReadAll(tr); err != nil || hdr.Size > 0 && string(data) != "text" || hdr.Uid != 7 {
			t.Errorf("%s: %q of %d, %v", hdr.Name, data, hdr.Uid, err)
		}
	}
	if want := []string{"etc/", "etc/new", "var/data/", "var/data/a"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
	// The diff is plain now, like those of other runtimes: another call leaves it unchanged.
	if removed, err := PlainDiff(t.Context(), dir, 0); err != nil || len(removed) > 0 {
		t.Errorf("a second PlainDiff: %q, %v", removed, err)
	}
	if removed, err := PlainDiff(t.Context(), t.TempDir(), 0); err != nil || len(removed) > 0 {
		t.Errorf("none: %q, %v", removed, err)
	}
}
