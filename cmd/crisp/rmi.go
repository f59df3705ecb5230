package main

import "github.com/spf13/cobra"

func rmiCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rmi IMAGE...", Short: "remove images", Args: takes(1, many, "rmi takes the images to remove"), ValidArgsFunction: c.completeImages,
		RunE: func(_ *cobra.Command, images []string) error { return c.removeImages(images) },
	}
}
