package main

import (
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/server/loaderapi"
	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageCommand does "image load" and "image prune". An archive goes to crispd by a
// service of crispd's own, since CRI has none for it.
func imageCommand(c *cli) *cobra.Command {
	var input string
	cmd := &cobra.Command{Use: "image load -i FILE | prune | pull IMAGE", Short: "load images from an archive, remove unused ones, or pull one", ValidArgs: []string{"load", "prune"}}
	cmd.AddCommand(pullCommand(c))
	fs := cmd.Flags()
	fs.StringVarP(&input, "input", "i", "", "`file` to load, an OCI or docker archive, plain or gzipped; - is standard input")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) == 1 && rest[0] == "prune" && input == "" {
			return c.pruneImages()
		}
		if len(rest) != 1 || rest[0] != "load" && rest[0] != "import" || input == "" {
			return usageError("image takes load, which needs -i FILE, or prune")
		}
		archive := c.stdin
		if input != "-" {
			f, err := os.Open(input)
			if err != nil {
				return err
			}
			defer f.Close()
			archive = f
		}
		names, err := c.load(archive)
		if err != nil {
			return fmt.Errorf("load %s: %w", input, criruntime.Fault(err))
		}
		for _, name := range names {
			fmt.Fprintln(c.stdout, name)
		}
		return nil
	}
	return cmd
}

// pruneImages removes the images that no container uses and nobody has pinned.
func (c *cli) pruneImages() error {
	runtime, images, err := c.connect()
	if err != nil {
		return err
	}
	list, err := images.ListImages(c.ctx, nil)
	if err != nil {
		return criruntime.Fault(err)
	}
	containers, err := runtime.ListContainers(c.ctx, nil)
	if err != nil {
		return criruntime.Fault(err)
	}
	used := map[string]bool{}
	for _, box := range containers {
		for _, name := range []string{box.ImageId, box.ImageRef, box.GetImage().GetImage()} {
			used[name] = true
		}
		resp, err := runtime.ContainerStatus(c.ctx, box.Id, false)
		if err != nil {
			continue // it is gone
		}
		for _, m := range resp.GetStatus().GetMounts() {
			used[m.GetImage().GetImage()] = true // a volume that is an image
		}
	}
	for _, image := range list {
		in := func(name string) bool { return used[name] }
		if image.Pinned || used[image.Id] || slices.ContainsFunc(image.RepoTags, in) || slices.ContainsFunc(image.RepoDigests, in) {
			continue
		}
		if err := images.RemoveImage(c.ctx, &cri.ImageSpec{Image: image.Id}); err != nil {
			return fmt.Errorf("remove image %s: %w", image.Id, criruntime.Fault(err))
		}
		for _, name := range imageNames(image) {
			fmt.Fprintln(c.stdout, name)
		}
	}
	return nil
}

func (c *cli) load(archive io.Reader) ([]string, error) {
	conn, err := c.dialRuntime()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return loaderapi.Load(c.ctx, conn, archive)
}
