package checkpoint

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/testheap"
)

// An archiveEntry is an entry of a tar for seeds.
type archiveEntry struct {
	name string
	kind byte
	text string
}

func archiveOf(f *testing.F, compress bool, entries ...archiveEntry) []byte {
	f.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		hdr := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: 0o644}
		if hdr.Size = int64(len(e.text)); e.kind == tar.TypeSymlink || e.kind == tar.TypeLink {
			hdr.Size, hdr.Linkname = 0, e.text
		}
		if err := tw.WriteHeader(hdr); err != nil {
			f.Fatal(err)
		}
		if hdr.Size > 0 {
			if _, err := tw.Write([]byte(e.text)); err != nil {
				f.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		f.Fatal(err)
	}
	if !compress {
		return buf.Bytes()
	}
	var small bytes.Buffer
	z := gzip.NewWriter(&small)
	if _, err := z.Write(buf.Bytes()); err != nil {
		f.Fatal(err)
	}
	if err := z.Close(); err != nil {
		f.Fatal(err)
	}
	return small.Bytes()
}

// beside runs unpack in a directory of its own, and fails if the secret file beside it has changed,
// or there is anything else.
func beside(t *testing.T, unpack func(dir string)) {
	t.Helper()
	top := t.TempDir()
	dir, secret := filepath.Join(top, "dir"), filepath.Join(top, "secret")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(secret, []byte("secret"), 0o640)); err != nil {
		t.Fatal(err)
	}
	unpack(dir)
	if info, err := os.Lstat(secret); err != nil || file(t, secret) != "secret" || info.Mode() != 0o640 {
		t.Errorf("the secret beside it has changed (%v)", err)
	}
	if entries, err := os.ReadDir(top); err != nil || len(entries) != 2 {
		t.Errorf("beside the directory there is %v", entries)
	}
}

// blamed fails the test if an error does not blame the stream.
func blamed(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, not of kind %v", err, fault.Invalid)
	}
}

// FuzzUnpackArchive unpacks any bytes: only the files of a checkpoint are written, in their places,
// and no more than the given size; RootFSDiff can be read, or the error blames the archive. It takes
// memory in proportion, however much it inflates.
func FuzzUnpackArchive(f *testing.F) {
	good := []archiveEntry{
		{Images, tar.TypeDir, ""}, {Images + "/inventory.img", tar.TypeReg, "criu"}, {ConfigDump, tar.TypeReg, `{"id": "1", "createdTime": "2026-01-01T00:00:00Z"}`},
		{SpecDump, tar.TypeReg, `{"ociVersion": "1"}`}, {DeletedFiles, tar.TypeReg, `["/a", "../b"]`}, {"unknown", tar.TypeReg, "x"},
	}
	f.Add(archiveOf(f, false, good...))
	f.Add(archiveOf(f, true, append(good, archiveEntry{RootFSDiff, tar.TypeReg, string(archiveOf(f, true, archiveEntry{".wh.gone", tar.TypeReg, ""}, archiveEntry{"d/.wh..wh..opq", tar.TypeReg, ""}, archiveEntry{"new", tar.TypeReg, "x"}))})...))
	f.Add(archiveOf(f, false, archiveEntry{Images + "/../../secret", tar.TypeReg, "x"}, archiveEntry{"./" + Images + "/..", tar.TypeReg, "x"}))
	f.Add(archiveOf(f, false, archiveEntry{ConfigDump, tar.TypeSymlink, "../secret"}, archiveEntry{ConfigDump, tar.TypeReg, "x"}))
	f.Add(archiveOf(f, false, archiveEntry{Images + "/a", tar.TypeReg, "x"}, archiveEntry{Images + "/a", tar.TypeReg, "y"}))
	f.Add(archiveOf(f, false, archiveEntry{RootFSDiff, tar.TypeReg, "\x28\xb5\x2f\xfd\x00\x00"}))
	f.Add([]byte("\x1f\x8b\x08"))
	f.Add(archiveOf(f, true, archiveEntry{Images + "/a", tar.TypeReg, strings.Repeat("x", 8<<20)}))
	f.Add(archiveOf(f, true, archiveEntry{RootFSDiff, tar.TypeReg, string(archiveOf(f, true, archiveEntry{"a", tar.TypeReg, strings.Repeat("x", 8<<20)}))}))
	f.Add(archiveOf(f, true, slices.Repeat([]archiveEntry{{Images + "/" + strings.Repeat("x", 200), tar.TypeReg, ""}}, 2000)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		const room = 1 << 16
		begin := testheap.Allocated()
		defer func() {
			limit := testheap.Bound{Base: 8 << 20, PerByte: 100}
			if got := testheap.Allocated() - begin; got > limit.Base && hasWindow(data) {
				limit.Base = 300 << 20 // of 128 MiB at most, for the archive and a file in it
			}
			limit.Check(t, "bytes allocated", testheap.Allocated()-begin, len(data))
		}()
		beside(t, func(dir string) {
			err := Unpack(t.Context(), bytes.NewReader(data), dir, room)
			if err != nil {
				blamed(t, err)
				return
			}
			size, err := allOf(dir)
			if err != nil || size > room {
				t.Errorf("%d bytes were written, more than the limit of %d (%v)", size, room, err)
			}
			var c Container
			var deleted []string
			for name, v := range map[string]any{ConfigDump: &c, DeletedFiles: &deleted} {
				if err := Read(dir, name, v); !errors.Is(err, fault.NotFound) {
					blamed(t, err)
				}
			}
			removed, err := PlainDiff(t.Context(), dir, room)
			blamed(t, err)
			for _, name := range removed {
				if filepath.Clean(name) != strings.TrimSuffix(name, "/") && name != "/" || !filepath.IsAbs(name) {
					t.Errorf("the archive removes %q", name)
				}
			}
		})
	})
}

// hasWindow reports whether there may be zstd in an archive, which can ask for memory in its header.
func hasWindow(data []byte) bool {
	if z, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
		data, _ = io.ReadAll(io.LimitReader(z, 1<<20))
	}
	return bytes.Contains(data, []byte("\x28\xb5\x2f\xfd"))
}

// allOf returns the size of the files that Unpack may make; any other file is an error.
func allOf(dir string) (size int64, err error) {
	err = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() && (path == dir || path == filepath.Join(dir, Images)) {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || filepath.Dir(rel) != Images && !slices.Contains(known, rel) {
			return errors.New("unexpected " + info.Mode().String() + " " + rel)
		}
		size += info.Size()
		return nil
	})
	return size, err
}

// FuzzUnpackFiles unpacks any bytes into a directory, as into a pod's /dev/shm.
func FuzzUnpackFiles(f *testing.F) {
	f.Add(archiveOf(f, false, archiveEntry{"d", tar.TypeDir, ""}, archiveEntry{"d/f", tar.TypeReg, "x"}, archiveEntry{"d/f", tar.TypeReg, "y"}))
	f.Add(archiveOf(f, false, archiveEntry{"../secret", tar.TypeReg, "x"}))
	f.Add(archiveOf(f, false, archiveEntry{"/", tar.TypeDir, ""}, archiveEntry{"..", tar.TypeDir, ""}, archiveEntry{"no/parent", tar.TypeReg, "x"}))
	f.Add(archiveOf(f, false, archiveEntry{"l", tar.TypeSymlink, "../secret"}, archiveEntry{"l", tar.TypeReg, "x"}, archiveEntry{"f", tar.TypeReg, ""}, archiveEntry{"f/x", tar.TypeReg, "x"}))
	f.Add(archiveOf(f, false, archiveEntry{strings.Repeat("x", 300), tar.TypeReg, "x"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			t.Skip("covers nothing new")
		}
		begin := testheap.Allocated()
		beside(t, func(dir string) { blamed(t, UnpackFiles(t.Context(), bytes.NewReader(data), dir)) })
		testheap.Bound{Base: 1 << 20, PerByte: 100}.Check(t, "bytes allocated", testheap.Allocated()-begin, len(data))
	})
}
