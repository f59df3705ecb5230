package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func imagesCommand(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "images [-o json]", Args: takesNone(""), Short: "list images"}
	fs := cmd.Flags()
	outputFlag(fs, &output, "json")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		return c.listImages(output)
	}
	return cmd
}

// images returns the images of the runtime.
func (c *cli) images() ([]*cri.Image, error) {
	_, service, err := c.connect()
	if err != nil {
		return nil, err
	}
	list, err := service.ListImages(c.ctx, nil)
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
