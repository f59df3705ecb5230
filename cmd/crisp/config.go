package main

import "github.com/spf13/cobra"

// configCommand shows the agent's configuration in the form of the kubelet's.
func configCommand(c *cli) *cobra.Command {
	output := "yaml"
	cmd := &cobra.Command{Use: "config view", Short: "show how the agent is configured", ValidArgs: []string{"view"}}
	fs := cmd.Flags()
	outputFlag(fs, &output, "yaml", "json")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) != 1 || rest[0] != "view" {
			return usageError("config takes: view")
		}
		var config struct {
			Kubelet map[string]any `json:"kubeletconfig"`
		}
		if err := c.fetch("/configz", nil, &config); err != nil {
			return err
		}
		return c.printValue(config.Kubelet, output)
	}
	return cmd
}
