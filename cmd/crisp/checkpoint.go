package main

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

// checkpointCommand makes the runtime write a checkpoint archive of a container.
func checkpointCommand(c *cli) *cobra.Command {
	var namespace, container string
	cmd := &cobra.Command{Use: "checkpoint POD [-c CONTAINER]", Args: takes(1, 1, "checkpoint takes the name of one pod"), Short: "write a checkpoint archive of a container", ValidArgsFunction: c.completePod}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	containerFlag(fs, &container)
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		_, f, err := c.connectToPod(namespace, rest[0])
		if err != nil {
			return err
		}
		status, err := c.container(f, container)
		if err != nil {
			return err
		}
		var answer struct{ Items []string }
		if _, err := c.send(http.MethodPost, "/checkpoint/"+f.Pod.Namespace+"/"+f.Pod.Name+"/"+status.Name, nil, nil, &answer); err != nil {
			return err
		}
		for _, path := range answer.Items {
			fmt.Fprintln(c.stdout, path)
		}
		return nil
	}
	return cmd
}
