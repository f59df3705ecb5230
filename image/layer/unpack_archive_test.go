package layer

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// archiveOf returns a tar of lines, one entry each:
//
//	type mode name [content or link]
//
// with the types of ls -l, and h for a hard link, w for a whiteout device in the
// archive itself. Attributes may follow a name: name;key=value.
func archiveOf(t testing.TB, lines string) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for line := range strings.Lines(lines) {
		hdr, content, ok := parseEntry(strings.TrimSpace(line))
		if !ok {
			continue
		}
		if err := tw.WriteHeader(hdr); err != nil {
			t.Fatalf("entry %q: %v", line, err)
		}
		if _, err := io.WriteString(tw, content); err != nil {
			t.Fatalf("entry %q: %v", line, err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func parseEntry(line string) (*tar.Header, string, bool) {
	f := strings.SplitN(line, " ", 4)
	if len(f) < 3 {
		return nil, "", false
	}
	var mode int64
	fmt.Sscanf(f[1], "%o", &mode)
	name, attrs, _ := strings.Cut(f[2], ";")
	rest := ""
	if len(f) == 4 {
		rest = f[3]
	}
	hdr := &tar.Header{Name: name, Mode: mode, ModTime: time.Unix(1_500_000_000, 500), Uid: 12, Gid: 34, Format: tar.FormatPAX}
	if key, value, ok := strings.Cut(attrs, "="); ok {
		hdr.PAXRecords = map[string]string{"SCHILY.xattr." + key: value}
	}
	switch f[0] {
	case "-":
		hdr.Typeflag, hdr.Size = tar.TypeReg, int64(len(rest))
		return hdr, rest, true
	case "d":
		hdr.Typeflag = tar.TypeDir
	case "l":
		hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, rest
	case "h":
		hdr.Typeflag, hdr.Linkname = tar.TypeLink, rest
	case "p":
		hdr.Typeflag = tar.TypeFifo
	case "c", "b":
		hdr.Typeflag = tar.TypeChar
		if f[0] == "b" {
			hdr.Typeflag = tar.TypeBlock
		}
		fmt.Sscanf(rest, "%d,%d", &hdr.Devmajor, &hdr.Devminor)
	default:
		return nil, "", false
	}
	return hdr, "", true
}

// listing describes a tree in archiveOf's lines, sorted by name.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%o %s", st.Mode&0o7777, name)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line = "- " + line + " " + string(data)
		case unix.S_IFDIR:
			line = "d " + line
			buf := make([]byte, 10)
			if n, err := unix.Lgetxattr(path, OverlayOpaque, buf); err == nil {
				line += " opaque=" + string(buf[:n])
			}
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line = "l " + name + " " + target
		case unix.S_IFCHR:
			line = fmt.Sprintf("c %s %d,%d", line, unix.Major(st.Rdev), unix.Minor(st.Rdev))
		case unix.S_IFBLK:
			line = fmt.Sprintf("b %s %d,%d", line, unix.Major(st.Rdev), unix.Minor(st.Rdev))
		case unix.S_IFIFO:
			line = "p " + line
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines[1:])
	return strings.Join(lines[1:], "\n")
}

func trim(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
