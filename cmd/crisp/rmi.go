package main

import "github.com/spf13/cobra"

func rmiCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "rmi IMAGE...", Short: "remove images", ValidArgsFunction: c.completeImages}
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) == 0 {
			return usageError("rmi takes the images to remove")
		}
		return c.removeImages(rest)
	}
	return cmd
}
