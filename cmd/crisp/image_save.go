package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/server/loaderapi"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// saveHelp is the help text of image about save.
const saveHelp = `save writes an image as a tar archive for image load, docker load, podman load and readers of oci-archive.
crispd keeps layers unpacked and makes their archives anew. If the bytes of one differ, the image has another
ID in the archive, which save prints to stderr. Files, owners, modes, times, attributes and links are the
same. The archive is tagged with IMAGE, unless that is an ID. It replaces FILE once it is complete.`

// saveImage writes the archive of an image to the file output; "-" is standard output.
func (c *cli) saveImage(name, output string) error {
	_, service, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := service.ImageStatus(c.ctx, &cri.ImageSpec{Image: name}, false)
	if err != nil {
		return criruntime.Fault(err)
	}
	conn, err := c.dialRuntime()
	if err != nil {
		return err
	}
	defer conn.Close()
	var id string
	write := func(w io.Writer) (err error) {
		id, err = loaderapi.Save(c.ctx, conn, name, w)
		return err
	}
	if output == "-" {
		if terminal(c.stdout) != nil {
			return usageError("an archive is nothing for a terminal")
		}
		err = write(c.stdout)
	} else {
		err = replaceFile(output, write)
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", name, criruntime.Fault(err))
	}
	if old := resp.GetImage().GetId(); old != "" && old != id {
		fmt.Fprintf(c.stderr, "crisp: in the archive %s has the ID %s, and not %s: layers were packed anew\n", name, id, old)
	}
	return nil
}

// replaceFile writes a new file beside path with write, and renames it to path if that succeeds. It
// writes directly to an existing file that is not regular, such as a pipe.
func replaceFile(path string, write func(io.Writer) error) (err error) {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600, as an image may have secrets
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	buf := bufio.NewWriterSize(f, 1<<20)
	if err := write(buf); err != nil {
		return err
	}
	if err := buf.Flush(); err != nil {
		return err
	}
	if err := f.Sync(); err != nil { // the image may be removed next
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
