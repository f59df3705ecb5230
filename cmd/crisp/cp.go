package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/remotecommand"
)

// cpCommand copies files by running tar(1) in the container, as kubectl does.
func cpCommand(c *cli) *cobra.Command {
	var namespace, container string
	cmd := &cobra.Command{Use: "cp POD:PATH FILE | FILE POD:PATH", Args: takes(2, 2, "cp takes from where and to where: POD:PATH FILE, or FILE POD:PATH"), Short: "copy files from or to a container"}
	flags := cmd.Flags()
	namespaceFlag(flags, &namespace)
	containerFlag(flags, &container)
	return runs(cmd, func(rest []string) error {
		from, fromPath, remoteFrom := strings.Cut(rest[0], ":")
		to, toPath, remoteTo := strings.Cut(rest[1], ":")
		switch {
		case remoteFrom && !remoteTo:
			return c.copyOut(namespace, from, container, fromPath, rest[1])
		case remoteTo && !remoteFrom:
			return c.copyIn(namespace, to, container, rest[0], toPath)
		}
		return usageError("cp: one of the two must be POD:PATH")
	})
}

func (c *cli) copyOut(namespace, name, container, from, to string) error {
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := c.exec(namespace, name, container, []string{"tar", "cf", "-", "-C", path.Dir(from), path.Base(from)}, remotecommand.StreamOptions{Stdout: w, Stderr: c.stderr})
		w.CloseWithError(err) // nil means EOF
		ended <- err
	}()
	// Into an existing directory it goes by its own name, else by the new one.
	base := path.Base(from)
	if info, err := os.Stat(to); err == nil && info.IsDir() {
		to = filepath.Join(to, base)
	}
	err := unpack(r, base, to, c.leftOut)
	if err == nil || errors.Is(err, errEmpty) {
		_, _ = io.Copy(io.Discard, r) // tar pads its last block
	}
	r.CloseWithError(err)
	// The error of tar explains why it sent nothing.
	if tarErr := <-ended; err == nil || tarErr != nil && errors.Is(err, errEmpty) {
		err = tarErr
	}
	return err
}

var errEmpty = errors.New("the archive is empty")

// maxName bounds the names in an archive to the length of a path. Programs could not open deeper
// files, and few could remove them.
const maxName = unix.PathMax - 1

// unpack writes the entries of an archive below the name base to the path to. The archive is
// untrusted: unpack writes only below to, and no links.
func unpack(r io.Reader, base, to string, leftOut func(name, what string)) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer root.Close()
	count := 0
	for archive := tar.NewReader(r); ; count++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if len(h.Name) > maxName {
			return fmt.Errorf("the archive holds a name of %d bytes, limit is %d: %.64q…", len(h.Name), maxName, h.Name)
		}
		rest, ok := strings.CutPrefix(path.Clean(h.Name), base)
		if !ok || rest != "" && rest[0] != '/' {
			return fmt.Errorf("the archive holds %s, which was not asked for", h.Name)
		}
		what, taken := kindOf(h.FileInfo().Mode())
		if h.Typeflag == tar.TypeLink {
			what, taken = "hard link", false
		}
		if !taken {
			leftOut(h.Name, what)
			continue
		}
		if err := unpackOne(root, filepath.Base(to)+rest, h, archive); err != nil {
			return err
		}
	}
	if count == 0 {
		return errEmpty
	}
	return nil
}

func unpackOne(root *os.Root, name string, h *tar.Header, content io.Reader) error {
	mode := fs.FileMode(h.Mode).Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, mode|0o700)
	case tar.TypeReg:
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Close())
	}
	return nil
}

// kindOf returns the name of a kind of file and whether it is copied. Links are not, since they may
// point anywhere on the other side, nor are devices.
func kindOf(mode fs.FileMode) (what string, taken bool) {
	switch {
	case mode.IsRegular():
		return "file", true
	case mode.IsDir():
		return "directory", true
	case mode&fs.ModeSymlink != 0:
		return "symbolic link", false
	case mode&fs.ModeDevice != 0:
		return "device", false
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe", false
	case mode&fs.ModeSocket != 0:
		return "socket", false
	}
	return "special file", false
}

// leftOut reports a file that was not copied.
func (c *cli) leftOut(name, what string) {
	fmt.Fprintf(c.stderr, "crisp: warning: %s is a %s and is left out\n", strconv.Quote(name), what)
}

func (c *cli) copyIn(namespace, name, container, from, to string) error {
	if _, err := os.Stat(from); err != nil {
		return err
	}
	dir, base := destination(from, to, func(path string) bool {
		return c.exec(namespace, name, container, []string{"test", "-d", path}, remotecommand.StreamOptions{Stdout: io.Discard}) == nil
	})
	return feed(func(w io.Writer) error { return pack(w, from, base, c.leftOut) }, func(r io.Reader) error {
		return c.exec(namespace, name, container, []string{"tar", "xf", "-", "-C", dir}, remotecommand.StreamOptions{Stdin: r, Stderr: c.stderr})
	})
}

// destination returns the directory to unpack in, and the name there. Into an existing directory it
// goes by its own name, as in kubectl; isDir is false for a container without test(1).
func destination(from, to string, isDir func(string) bool) (dir, base string) {
	if strings.HasSuffix(to, "/") || isDir(to) {
		return path.Clean(to), filepath.Base(from)
	}
	return path.Dir(to), path.Base(to)
}

// feed connects the output of from to the input of to. An error of from is the cause of one of to,
// and counts even if to succeeds: a tar that received only part of an archive may take it for
// complete.
func feed(from func(io.Writer) error, to func(io.Reader) error) error {
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := from(w)
		w.CloseWithError(err)
		written <- err
	}()
	err := to(r)
	r.Close()
	if cause := <-written; cause != nil && !errors.Is(cause, io.ErrClosedPipe) {
		return cause
	}
	return err
}

// pack writes an archive of the file or directory from, under the name base.
func pack(w io.Writer, from, base string, leftOut func(name, what string)) error {
	archive := tar.NewWriter(w)
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if what, taken := kindOf(info.Mode()); !taken {
			leftOut(p, what)
			return nil
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Name = path.Join(base, filepath.ToSlash(rel))
		h.ModTime = info.ModTime().Truncate(time.Second) // archive/tar would round it, perhaps into the future
		if err := archive.WriteHeader(h); err != nil || info.IsDir() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(archive, f)
		return err
	})
	return errors.Join(err, archive.Close())
}
