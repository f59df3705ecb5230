package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/server/loaderapi"
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
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
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
	}
	return cmd
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
	names, err := loaderapi.Load(c.ctx, conn, archive)
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
	full, err := loaderapi.Tag(c.ctx, conn, image, tag)
	if err != nil {
		return fmt.Errorf("tag %s: %w", image, criruntime.Fault(err))
	}
	_, err = fmt.Fprintln(c.stdout, full)
	return err
}

// image requests an image by any of its names from the runtime.
func (c *cli) image(name string, verbose bool) (*cri.ImageStatusResponse, error) {
	_, service, err := c.connect()
	if err != nil {
		return nil, err
	}
	resp, err := service.ImageStatus(c.ctx, &cri.ImageSpec{Image: name}, verbose)
	if err == nil && resp.GetImage() == nil {
		return nil, fault.NotFound.Errorf("there is no image %s", name)
	}
	return resp, criruntime.Fault(err)
}

// removeImages removes images by any of their names.
func (c *cli) removeImages(names []string) error {
	_, service, err := c.connect()
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := c.image(name, false); err != nil { // CRI's RemoveImage ignores a missing image
			return err
		}
		if err := service.RemoveImage(c.ctx, &cri.ImageSpec{Image: name}); err != nil {
			return fmt.Errorf("remove image %s: %w", name, criruntime.Fault(err))
		}
		fmt.Fprintln(c.stdout, name)
	}
	return nil
}

// unusedImages returns the images that no container uses and that are not pinned.
func (c *cli) unusedImages() ([]*cri.Image, error) {
	runtime, _, err := c.connect()
	if err != nil {
		return nil, err
	}
	list, err := c.images()
	if err != nil {
		return nil, err
	}
	containers, err := runtime.ListContainers(c.ctx, nil)
	if err != nil {
		return nil, criruntime.Fault(err)
	}
	used := map[string]bool{}
	for _, box := range containers {
		for _, name := range []string{box.ImageId, box.ImageRef, box.GetImage().GetImage()} {
			used[name] = true
		}
		resp, err := runtime.ContainerStatus(c.ctx, box.Id, false)
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
	_, images, err := c.connect()
	if err != nil {
		return err
	}
	for _, image := range list {
		if err := images.RemoveImage(c.ctx, &cri.ImageSpec{Image: image.Id}); err != nil {
			return fmt.Errorf("remove image %s: %w", image.Id, criruntime.Fault(err))
		}
		for _, name := range imageNames(image) {
			fmt.Fprintln(c.stdout, name)
		}
	}
	return nil
}
