package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/server/loaderapi/loaderclient"
	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageActs has the subcommands of image except pull. Docker's ls, pull and rm are also top-level
// commands of crisp.
var imageActs = []string{"ls", "rm", "inspect", "tag", "load", "save", "prune"}

// imageCommand manages images. CRI has no calls for archives and tags, so those use a service of
// crispd.
func imageCommand(c *cli) *cobra.Command {
	var input, output string
	cmd := &cobra.Command{Use: "image ls | pull IMAGE | rm IMAGE... | inspect IMAGE... | tag IMAGE NAME | load -i FILE | save IMAGE -o FILE | prune",
		Short: "manage images", Long: saveHelp, ValidArgsFunction: completeActs(imageActs, c.completeImages)}
	cmd.AddCommand(pullCommand(c))
	fs := cmd.Flags()
	fs.StringVarP(&input, "input", "i", "", "`file` to load, an OCI or docker archive, plain or gzipped; - is standard input")
	fs.StringVarP(&output, "output", "o", "", "`file` to save to; - is standard output")
	return runs(cmd, func(rest []string) error {
		act := ""
		if len(rest) > 0 {
			act, rest = rest[0], rest[1:]
		}
		switch {
		case (act == "load" || act == "import") && input != "" && len(rest) == 0:
			return c.loadImages(input)
		case act == "save" && output != "" && len(rest) == 1:
			return c.saveImage(rest[0], output)
		case act == "ls" && len(rest) == 0:
			return c.listImages("")
		case act == "prune" && len(rest) == 0:
			return c.pruneImages()
		case act == "rm" && len(rest) > 0:
			return c.removeImages(rest)
		case act == "inspect" && len(rest) > 0:
			return c.inspect(rest, inspectOptions{kind: "image"})
		case act == "tag" && len(rest) == 2:
			return c.tagImage(rest[0], rest[1])
		}
		return usageError("image takes ls, pull IMAGE, rm IMAGE, inspect IMAGE, tag IMAGE NAME, load, which needs -i FILE, save IMAGE, which needs -o FILE, or prune")
	})
}

func (c *cli) loadImages(input string) error {
	archive := c.stdin
	if input != "-" {
		f, err := os.Open(input)
		if err != nil {
			return err
		}
		defer f.Close()
		archive = f
	}
	conn, err := c.dialRuntime()
	if err != nil {
		return err
	}
	defer conn.Close()
	names, err := loaderclient.Load(c.ctx, conn, archive)
	if err != nil {
		return fmt.Errorf("load %s: %w", input, criruntime.Fault(err))
	}
	for _, name := range names {
		fmt.Fprintln(c.stdout, name)
	}
	return nil
}

func (c *cli) tagImage(image, tag string) error {
	conn, err := c.dialRuntime()
	if err != nil {
		return err
	}
	defer conn.Close()
	full, err := loaderclient.Tag(c.ctx, conn, image, tag)
	if err != nil {
		return fmt.Errorf("tag %s: %w", image, criruntime.Fault(err))
	}
	_, err = fmt.Fprintln(c.stdout, full)
	return err
}

// image requests an image by any of its names from the runtime.
func (c *cli) image(name string, verbose bool) (*cri.ImageStatusResponse, error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	resp, err := c.store.ImageStatus(c.ctx, &cri.ImageSpec{Image: name}, verbose)
	if err == nil && resp.GetImage() == nil {
		return nil, fault.NotFound.Errorf("there is no image %s", name)
	}
	return resp, criruntime.Fault(err)
}

// removeImages removes images by any of their names.
func (c *cli) removeImages(names []string) error {
	for _, name := range names {
		if _, err := c.image(name, false); err != nil { // CRI's RemoveImage ignores a missing image
			return err
		}
		if err := c.store.RemoveImage(c.ctx, &cri.ImageSpec{Image: name}); err != nil {
			return fmt.Errorf("remove image %s: %w", name, criruntime.Fault(err))
		}
		fmt.Fprintln(c.stdout, name)
	}
	return nil
}

// unusedImages returns the images that no container uses and that are not pinned.
func (c *cli) unusedImages() ([]*cri.Image, error) {
	list, err := c.images()
	if err != nil {
		return nil, err
	}
	containers, err := c.runtime.ListContainers(c.ctx, nil)
	if err != nil {
		return nil, criruntime.Fault(err)
	}
	used := map[string]bool{}
	for _, container := range containers {
		for _, name := range []string{container.ImageId, container.ImageRef, container.GetImage().GetImage()} {
			used[name] = true
		}
		resp, err := c.runtime.ContainerStatus(c.ctx, container.Id, false)
		if err != nil {
			continue // removed meanwhile
		}
		for _, m := range resp.GetStatus().GetMounts() {
			used[m.GetImage().GetImage()] = true // an image volume
		}
	}
	in := func(name string) bool { return used[name] }
	return slices.DeleteFunc(list, func(image *cri.Image) bool {
		return image.Pinned || used[image.Id] || slices.ContainsFunc(image.RepoTags, in) || slices.ContainsFunc(image.RepoDigests, in)
	}), nil
}

// pruneImages removes unused images.
func (c *cli) pruneImages() error {
	list, err := c.unusedImages()
	if err != nil {
		return err
	}
	for _, image := range list {
		if err := c.store.RemoveImage(c.ctx, &cri.ImageSpec{Image: image.Id}); err != nil {
			return fmt.Errorf("remove image %s: %w", image.Id, criruntime.Fault(err))
		}
		for _, name := range imageNames(image) {
			fmt.Fprintln(c.stdout, name)
		}
	}
	return nil
}

func imagesCommand(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "images [-o json]", Args: takesNone(""), Short: "list images"}
	fs := cmd.Flags()
	outputFlag(fs, &output, "json")
	return runs(cmd, func(_ []string) error {
		return c.listImages(output)
	})
}

// images returns the images of the runtime.
func (c *cli) images() ([]*cri.Image, error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	list, err := c.store.ListImages(c.ctx, nil)
	return list, criruntime.Fault(err)
}

func (c *cli) listImages(output string) error {
	list, err := c.images()
	if err != nil {
		return err
	}
	if output == "json" {
		return c.printValue(map[string]any{"images": list}, output)
	}
	var rows []string
	for _, image := range list {
		for _, name := range imageNames(image) {
			rows = append(rows, fmt.Sprintf("%s\t%s\t%s", name, shortID(image.Id), size(image.Size)))
		}
	}
	slices.Sort(rows)
	t := c.columns("IMAGE", "ID", "SIZE")
	for _, row := range rows {
		fmt.Fprintln(t, row)
	}
	return t.Flush()
}

// imageNames returns the tags of an image or, if it has none, one digest.
func imageNames(image *cri.Image) []string {
	switch {
	case len(image.RepoTags) > 0:
		return image.RepoTags
	case len(image.RepoDigests) > 0:
		return image.RepoDigests[:1]
	}
	return []string{"<none>"}
}

func size(bytes uint64) string {
	f, units := float64(bytes), []string{"B", "kB", "MB", "GB", "TB"}
	for f >= 1000 && len(units) > 1 {
		f, units = f/1000, units[1:]
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + units[0]
}

func rmiCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rmi IMAGE...", Short: "remove images", Args: takes(1, many, "rmi takes the images to remove"), ValidArgsFunction: c.completeImages,
		RunE: func(_ *cobra.Command, images []string) error { return c.removeImages(images) },
	}
}

// saveHelp is the help text of image about save.
const saveHelp = `save writes an image as a tar archive for image load, docker load, podman load and readers of oci-archive.
crispd keeps layers unpacked and makes their archives anew. If the bytes of one differ, the image has another
ID in the archive, which save prints to stderr. Files, owners, modes, times, attributes and links are the
same. The archive is tagged with IMAGE, unless that is an ID. It replaces FILE once it is complete.`

// saveImage writes the archive of an image to the file output; "-" is standard output.
func (c *cli) saveImage(name, output string) error {
	if err := c.connect(); err != nil {
		return err
	}
	resp, err := c.store.ImageStatus(c.ctx, &cri.ImageSpec{Image: name}, false)
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
		id, err = loaderclient.Save(c.ctx, conn, name, w)
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
