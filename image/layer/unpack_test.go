package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func needRoot(t testing.TB) {
	t.Helper()
	testenv.NeedRoot(t, "device nodes, owners and trusted attributes are made")
}

// TestUnpack has the entries of a layer on the left, and on the right the tree for
// overlayfs.
func TestUnpack(t *testing.T) {
	needRoot(t)
	for _, c := range []struct{ name, tar, want string }{
		{"kinds of files", `
			d 750 a
			- 4711 a/program x y
			l 777 a/link /somewhere/else
			h 0 a/second a/program
			p 622 a/pipe
			c 666 a/null 1,3
			b 660 a/disk 8,0`, `
			- 4711 a/program x y
			- 4711 a/second x y
			b 660 a/disk 8,0
			c 666 a/null 1,3
			d 750 a
			l a/link /somewhere/else
			p 622 a/pipe`},
		{"missing parents are made", `- 600 a/b/c 1`, `
			- 600 a/b/c 1
			d 755 a
			d 755 a/b`},
		{"absolute and dotted names are inside", `
			- 600 /a 1
			- 600 ./b 2
			- 600 c/../d 3`, `
			- 600 a 1
			- 600 b 2
			- 600 d 3`},
		{"the later entry counts", `
			- 600 a 1
			d 700 b
			- 600 b/x 1
			l 777 c b
			d 711 a
			- 644 b 2
			- 600 c 3`, `
			- 600 c 3
			- 644 b 2
			d 711 a`},
		{"a directory twice keeps its files", `
			d 700 a
			- 600 a/x 1
			d 755 a`, `
			- 600 a/x 1
			d 755 a`},
		{"whiteouts", `
			d 755 a
			- 0 a/.wh.gone
			- 0 .wh.all
			- 0 a/.wh..wh..opq`, `
			c 0 a/gone 0,0
			c 0 all 0,0
			d 755 a opaque=y`},
		{"a whiteout hides what is below, not what is beside", `
			- 600 f 1
			- 0 .wh.f
			d 700 d
			- 0 .wh.d
			- 0 .wh.e
			d 700 e
			- 0 .wh.g
			- 600 g 2
			- 0 .wh.h
			- 600 h/x 3`, `
			- 600 f 1
			- 600 g 2
			- 600 h/x 3
			d 700 d opaque=y
			d 700 e opaque=y
			d 755 h opaque=y`},
		{"what aufs left is no file", `
			- 600 .wh..wh.plnk/1 x
			- 600 .wh..wh.aufs x
			- 600 a x`, `- 600 a x`},
		{"links lead where they would in a container", `
			d 755 usr
			d 755 usr/lib
			l 777 lib usr/lib
			l 777 run /var/run
			- 600 lib/x 1
			- 600 run/y 2`, `
			- 600 usr/lib/x 1
			- 600 var/run/y 2
			d 755 usr
			d 755 usr/lib
			d 755 var
			d 755 var/run
			l lib usr/lib
			l run /var/run`},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachForm(t, func(t *testing.T, form form) {
				dir := t.TempDir()
				if _, err := form.unpack(t, bytes.NewReader(archiveOf(t, c.tar)), dir); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(trim(c.want), listing(t, dir)); diff != "" {
					t.Errorf("tree (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Times and capabilities must be set last: writes and chown reset them.
func TestUnpackAttributes(t *testing.T) {
	needRoot(t)
	eachForm(t, testUnpackAttributes)
}

func testUnpackAttributes(t *testing.T, form form) {
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" // cap_net_bind_service
	dir := t.TempDir()
	_, err := form.unpack(t, bytes.NewReader(archiveOf(t, `
		d 1777 .
		d 2755 d
		- 4755 d/f;security.capability=`+strings.ReplaceAll(capability, "\n", "")+` data
		- 644 d/u;user.note=hello data
		- 644 d/t;trusted.other=x data
		- 755 d/s;security.ima=`+"\x03\x02"+`signature data
		- 755 d/e;security.evm=`+"\x03\x02"+`signature data
		l 777 d/l f`)), dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]uint32{".": 0o41777, "d": 0o42755, "d/f": 0o104755, "d/l": 0o120777} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Mode != mode || st.Uid != 12 || st.Gid != 34 || st.Mtim.Sec != 1_500_000_000 || st.Mtim.Nsec != 500 {
			t.Errorf("%s: mode %o owner %d:%d time %v", name, st.Mode, st.Uid, st.Gid, st.Mtim)
		}
	}
	for _, c := range []struct{ name, key, want string }{
		{"d/f", "security.capability", capability},
		{"d/u", "user.note", "hello"},
		{"d/t", "trusted.other", ""},
		{"d/s", "security.ima", "\x03\x02signature"},
		{"d/e", "security.evm", ""},
	} {
		buf := make([]byte, 100)
		n, err := unix.Lgetxattr(filepath.Join(dir, c.name), c.key, buf)
		if err != nil && !errors.Is(err, unix.ENODATA) {
			t.Fatalf("%s of %s: %v", c.key, c.name, err)
		}
		if got := string(buf[:max(n, 0)]); got != c.want {
			t.Errorf("%s of %s is %q, want %q", c.key, c.name, got, c.want)
		}
	}
}

// New files in a set-group-ID directory belong to its group: a file that the layer gives to
// group root must not become readable by that one.
func TestUnpackIntoSetGroupIDDirectory(t *testing.T) {
	needRoot(t)
	eachForm(t, testUnpackIntoSetGroupIDDirectory)
}

func testUnpackIntoSetGroupIDDirectory(t *testing.T, form form) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, hdr := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "srv", Mode: 0o2775, Gid: 50},
		{Typeflag: tar.TypeReg, Name: "srv/key", Mode: 0o640},
		{Typeflag: tar.TypeDir, Name: "srv/dir", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "srv/implied/file", Mode: 0o640},
	} {
		if err := tw.WriteHeader(&hdr); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := form.unpack(t, &buf, dir); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]uint32{"srv/key": 0o100640, "srv/dir": 0o40755, "srv/implied": 0o40755, "srv/implied/file": 0o100640} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Mode != mode || st.Uid != 0 || st.Gid != 0 {
			t.Errorf("%s: mode %o owner %d:%d, want %o and 0:0", name, st.Mode, st.Uid, st.Gid, mode)
		}
	}
}

// The entry of a directory remains valid if a later entry replaces a parent.
func TestUnpackReplacesLinkToDirectory(t *testing.T) {
	needRoot(t)
	eachForm(t, testUnpackReplacesLinkToDirectory)
}

func testUnpackReplacesLinkToDirectory(t *testing.T, form form) {
	dir := t.TempDir()
	_, err := form.unpack(t, bytes.NewReader(archiveOf(t, `
		d 755 t
		l 777 a t
		d 755 a/b
		- 644 a file now
		- 644 x/y/z deep
		- 644 x file now
		d 700 x`)), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range details(t, dir) {
		if strings.Contains(line, OverlayImplied) {
			t.Errorf("%s is said to have no entry", line)
		}
	}
	want := trim(`
		- 644 a file now
		d 700 x
		d 755 t
		d 755 t/b`)
	if got := listing(t, dir); got != want {
		t.Errorf("the tree is\n%s\nwant\n%s", got, want)
	}
}

// A sparse file of GNU tar (format 1.0 in PAX records) keeps its holes.
func TestUnpackSparse(t *testing.T) {
	needRoot(t)
	eachForm(t, testUnpackSparse)
}

func testUnpackSparse(t *testing.T, form form) {
	const size = 64 << 20
	content := "2\n0\n4\n" + fmt.Sprint(size-4) + "\n4\n"
	content += strings.Repeat("\x00", 512-len(content)) + "headtail"
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "GNUSparseFile.0/f", Mode: 0o600, Size: int64(len(content)), Format: tar.FormatPAX})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(tw, content); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	// archive/tar refuses to write the records of sparse files, so they are added
	// by hand, as a header of their own before the file's.
	records := paxRecord("GNU.sparse.major", "1") + paxRecord("GNU.sparse.minor", "0") +
		paxRecord("GNU.sparse.name", "f") + paxRecord("GNU.sparse.realsize", fmt.Sprint(size))
	dir := t.TempDir()
	if _, err := form.unpack(t, io.MultiReader(paxHeader(t, records), &buf), dir); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "f"), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != size || form.name == asDirectory.name && st.Blocks*512 > 4<<20 { // EROFS does not report holes
		t.Errorf("size %d in %d bytes of disk", st.Size, st.Blocks*512)
	}
	f, err := os.Open(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head, tail := make([]byte, 5), make([]byte, 4)
	if _, err := f.ReadAt(head, 0); err != nil || string(head) != "head\x00" {
		t.Errorf("begins with %q (err %v)", head, err)
	}
	if _, err := f.ReadAt(tail, size-4); err != nil || string(tail) != "tail" {
		t.Errorf("ends with %q (err %v)", tail, err)
	}
}

func paxRecord(key, value string) string {
	n := len(key) + len(value) + 3
	for len(fmt.Sprint(n))+len(key)+len(value)+3 != n {
		n++
	}
	return fmt.Sprintf("%d %s=%s\n", n, key, value)
}

// paxHeader returns an extended header with these records, for the next entry.
func paxHeader(t *testing.T, records string) io.Reader {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "x", Size: int64(len(records)), Format: tar.FormatUSTAR}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(tw, records); err != nil {
		t.Fatal(err)
	}
	if err := tw.Flush(); err != nil {
		t.Fatal(err)
	}
	block := buf.Bytes()
	block[156] = tar.TypeXHeader
	copy(block[148:156], "        ")
	var sum int
	for _, b := range block[:512] {
		sum += int(b)
	}
	copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return &buf
}

// TestUnpackRefuses lists invalid layers. Each gives an error that blames the layer, and
// changes nothing outside.
func TestUnpackRefuses(t *testing.T) {
	needRoot(t)
	for name, lines := range map[string]string{
		"name that climbs out":              `- 600 ../x 1`,
		"name that climbs out later":        `- 600 a/../../x 1`,
		"hard link to outside":              `h 0 x ../outside/secret`,
		"hard link to nothing":              `h 0 x y`,
		"hard link to a directory":          "d 755 d\nh 0 x d",
		"hard link through a link":          "l 777 d OUTSIDE\nh 0 x d/secret",
		"overlayfs's attribute":             `d 755 a;trusted.overlay.redirect=/`,
		"whiteout of nothing":               `- 0 .wh.`,
		"whiteout of the parent":            `- 0 a/.wh...`,
		"file as root":                      `- 600 . 1`,
		"link as root":                      `l 777 . OUTSIDE`,
		"file below a file":                 "- 600 a 1\n- 600 a/b 1",
		"file below a loop of links":        "l 777 a a\n- 600 a/b 1",
		"name longer than the kernel takes": `- 600 ` + strings.Repeat("x", 300) + ` 1`,
		"whiteout of a name that long":      `- 0 .wh.` + strings.Repeat("x", 300),
		"directory of a name that long":     `d 755 ` + strings.Repeat("x", 300),
		"link of a name that long":          "- 600 a\nh 0 " + strings.Repeat("x", 300) + " a",
		"path longer than the kernel takes": `- 600 ` + strings.Repeat(strings.Repeat("x", 200)+"/", 1) + strings.Repeat("y", 256) + ` 1`,
		"directories too deep":              `- 600 ` + strings.Repeat("d/", 3000) + `f 1`,
		"directories too deep by links":     "- 600 " + strings.Repeat("d/", 1500) + "f 1\nl 777 l " + strings.Repeat("d/", 1500) + "\n- 600 l/" + strings.Repeat("e/", 1500) + "f 1",
		"device out of range":               `c 600 a 70000,1`,
	} {
		t.Run(name, func(t *testing.T) {
			unpackBeside(t, strings.ReplaceAll(lines, "OUTSIDE", "../outside"), fault.Invalid)
			unpackBeside(t, lines, fault.Invalid)
		})
	}
}

// TestUnpackStaysInside lists valid layers that would write outside if symlinks were
// resolved on the host.
func TestUnpackStaysInside(t *testing.T) {
	needRoot(t)
	for name, lines := range map[string]string{
		"file through a link":         "l 777 d OUTSIDE\n- 600 d/secret stolen",
		"directory through a link":    "l 777 d OUTSIDE\nd 777 d/new",
		"file over a link":            "l 777 f OUTSIDE/secret\n- 600 f stolen",
		"directory over a link":       "l 777 d OUTSIDE\nd 700 d\n- 600 d/secret stolen",
		"whiteout through a link":     "l 777 d OUTSIDE\n- 0 d/.wh.secret\n- 0 d/.wh..wh..opq",
		"link replaced under a path":  "d 755 a\nd 755 a/b\n- 600 a/b/x 1\nl 777 a OUTSIDE\n- 600 a/b/y 2\n- 600 a/secret 3",
		"removal through a link":      "l 777 d OUTSIDE\nd 755 d/dir\n- 600 d/dir 1",
		"mode through a hard link":    "l 777 l OUTSIDE/secret\nh 0 m l\n- 777 m stolen",
		"attributes on a link":        "l 777 l;user.a=b OUTSIDE/secret",
		"device through a link":       "l 777 d OUTSIDE\nc 666 d/secret 1,3",
		"absolute name of the secret": "- 600 OUTSIDE/secret stolen",
	} {
		t.Run(name, func(t *testing.T) {
			unpackBeside(t, strings.ReplaceAll(lines, "OUTSIDE", "../../outside"), fault.Internal)
			unpackBeside(t, lines, fault.Internal)
		})
	}
}

// unpackBeside unpacks lines beside a directory, whose path replaces OUTSIDE, and fails if
// anything there has changed. want is the kind of the error; Internal allows success, and
// an error that blames the layer.
func unpackBeside(t testing.TB, lines string, want fault.Kind) {
	t.Helper()
	top := t.TempDir()
	outside := filepath.Join(top, "outside")
	if err := os.MkdirAll(filepath.Join(outside, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"secret", "dir/file"} {
		if err := os.WriteFile(filepath.Join(outside, name), []byte("secret"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	layer := filepath.Join(top, "layer")
	if err := os.Mkdir(layer, 0o755); err != nil {
		t.Fatal(err)
	}
	before, err := measure(t.Context(), outside)
	if err != nil {
		t.Fatal(err)
	}
	data := archiveOf(t, strings.ReplaceAll(lines, "OUTSIDE", outside))
	inProportion(t, data)
	_, err = unpack(t.Context(), bytes.NewReader(data), layer, new(growth))
	sameAsEROFS(t, data, layer, err)
	if want != fault.Internal && !errors.Is(err, want) {
		t.Errorf("error is %v, want one of kind %v", err, want)
	}
	if want == fault.Internal && err != nil && !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want none or one of kind %v", err, fault.Invalid)
	}
	after, err := measure(t.Context(), outside)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := os.ReadFile(filepath.Join(outside, "secret"))
	if after != before || err != nil || string(secret) != "secret" {
		t.Errorf("the directory outside has changed: %q (err %v)", secret, err)
	}
	if names, _ := os.ReadDir(top); len(names) != 2 {
		t.Errorf("beside the layer there is %v", names)
	}
}

// sameAsEROFS fails if the layer data, unpacked as EROFS, differs from the directory dir
// and the error err of unpacking it there.
func sameAsEROFS(t testing.TB, data []byte, dir string, err error) {
	t.Helper()
	if !mountsEROFS() {
		return
	}
	packed := t.TempDir()
	_, got := asEROFS.unpack(t, bytes.NewReader(data), packed)
	switch {
	case (got == nil) != (err == nil) || errors.Is(got, fault.Invalid) != errors.Is(err, fault.Invalid):
		t.Errorf("as EROFS the error is %v, as a directory %v", got, err)
	case err == nil:
		if diff := cmp.Diff(listing(t, dir), listing(t, packed)); diff != "" {
			t.Errorf("as EROFS it differs (-directory +EROFS):\n%s", diff)
		}
	}
}

// FuzzUnpack unpacks entries in the format of archiveOf: nothing outside changes, whatever
// they are, and they take memory in proportion.
func FuzzUnpack(f *testing.F) {
	needRoot(f)
	for _, seed := range []string{
		chains(2), padded("-"), padded("d"),
		"l 777 a OUTSIDE\n- 600 a/secret x",
		"d 755 a\nl 777 a/b ../../outside\nh 0 c a/b\n- 600 c/secret x\n- 0 c/.wh.dir",
		"- 600 ../outside/secret x",
		"d 755 a\nl 777 b a\nl 777 a /OUTSIDE\n- 600 b/secret x\nd 700 a\nd 700 b\n- 0 b/.wh..wh..opq",
		"h 0 a OUTSIDE/secret\n- 600 a x",
		"l 777 a no/../x\n- 600 a/b 1",
		"l 777 a .\nl 777 a/a/b ..\n- 600 a/b/outside/secret x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, lines string) {
		var legal []string
		for line := range strings.Lines(lines) {
			hdr, _, ok := parseEntry(strings.TrimSpace(strings.ReplaceAll(line, "OUTSIDE", "/x")))
			if !ok || tar.NewWriter(io.Discard).WriteHeader(hdr) != nil {
				continue // a tar header cannot hold it
			}
			legal = append(legal, strings.TrimSpace(line))
		}
		if len(legal) > 50 {
			t.Skip("more than 50 entries: slow, and covers nothing new")
		}
		unpackBeside(t, strings.Join(legal, "\n"), fault.Internal)
	})
}

// FuzzUnpackStream unpacks bytes as a layer, and as the plain tar of a checkpoint: it
// succeeds or fails, nothing outside changes, and it takes memory in proportion.
func FuzzUnpackStream(f *testing.F) {
	needRoot(f)
	f.Add(archiveOf(f, chains(2)))
	f.Add(archiveOf(f, padded("-")))
	f.Add(archiveOf(f, "d 755 a\n- 644 a/b;user.x=y content\nl 777 c a\nh 0 d a/b\n- 0 .wh.e"))
	f.Add(archiveOf(f, "l 777 a ../outside\n- 600 a/secret x\n- 0 a/.wh.secret"))
	f.Add(archiveOf(f, "h 0 a ../outside/secret\n- 777 a x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, plain := range []bool{false, true} {
			streamBeside(t, data, plain)
		}
	})
}

// streamBeside unpacks a stream beside a directory in which nothing may change.
func streamBeside(t *testing.T, data []byte, plain bool) {
	t.Helper()
	top := t.TempDir()
	layer, outside := filepath.Join(top, "layer"), filepath.Join(top, "outside")
	if err := errors.Join(os.Mkdir(layer, 0o755), os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o640)); err != nil {
		t.Fatal(err)
	}
	before, err := measure(t.Context(), outside)
	if err != nil {
		t.Fatal(err)
	}
	_, err = unpackInto(t.Context(), bytes.NewReader(data), layer, unpacking{plain: plain}, new(growth))
	if !plain {
		inProportion(t, data)
		sameAsEROFS(t, data, layer, err)
	}
	if err == nil {
		if _, err := measure(t.Context(), layer); err != nil {
			t.Errorf("unpacked tree cannot be walked: %v", err)
		}
	} else if !errors.Is(err, fault.Invalid) && !errors.Is(err, fault.Unavailable) {
		t.Errorf("error is %v, which does not blame the stream", err)
	}
	after, err := measure(t.Context(), outside)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := os.ReadFile(filepath.Join(outside, "secret"))
	if after != before || err != nil || string(secret) != "secret" {
		t.Errorf("the directory outside has changed: %q (err %v)", secret, err)
	}
	if names, _ := os.ReadDir(top); len(names) != 2 {
		t.Errorf("beside the layer there is %v", names)
	}
}
