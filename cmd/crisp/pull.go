package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func pullCommand(c *cli) *cobra.Command {
	var progress string
	cmd := &cobra.Command{Use: "pull IMAGE [--progress plain]", Args: takes(1, 1, "pull takes one image"), Short: "pull an image"}
	cmd.Flags().StringVar(&progress, "progress", "auto", "`how` to show progress: auto (bars, on a terminal), plain (lines) or none")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		return c.pull(rest[0], progress)
	}
	return cmd
}

// progressKinds has the ways to show the progress of a pull.
var progressKinds = []string{"auto", "plain", "none"}

// pull pulls an image, and shows the progress on stderr.
func (c *cli) pull(image, progress string) error {
	if !slices.Contains(progressKinds, progress) {
		return usageError("--progress %s: want one of %v", progress, progressKinds)
	}
	_, service, err := c.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		c.showPull(ctx, image, progress)
	}()
	ref, err := service.PullImage(c.ctx, &cri.ImageSpec{Image: image, UserSpecifiedImage: image}, nil, nil)
	cancel()
	<-shown
	if err != nil {
		return fmt.Errorf("pull %s: %w", image, criruntime.Fault(err))
	}
	fmt.Fprintln(c.stdout, ref)
	return nil
}
