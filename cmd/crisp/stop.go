package main

import "github.com/spf13/cobra"

// stopCommand is delete, by the word that people try first. A pod that is wanted is
// started again when it ends, so that nothing less would stop it.
func stopCommand(c *cli) *cobra.Command {
	cmd := deleteCommand(c)
	cmd.Use = "stop pod/NAME"
	cmd.Short = "delete a pod, as delete does: what was applied or run is gone for good, what comes from a manifest is only ended with --remove-manifest"
	return cmd
}
