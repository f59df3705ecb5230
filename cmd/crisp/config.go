package main

import ()

// runConfig shows how the agent is configured, in the kubelet's words.
func runConfig(c *cli, args []string) error {
	var output string
	fs := c.flags("config")
	fs.StringVar(&output, "o", "yaml", "`form`: yaml or json")
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
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
