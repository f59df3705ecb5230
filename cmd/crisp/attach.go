package main

import (
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func attachCommand(c *cli) *cobra.Command {
	var namespace, container string
	var interactive, tty bool
	cmd := &cobra.Command{Use: "attach [-i] [-t] [-c CONTAINER] POD", Args: takes(1, 1, "attach takes the name of one pod"), Short: "attach to a running container", ValidArgsFunction: c.completePod}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	containerFlag(fs, &container)
	streamFlags(fs, &interactive, &tty, "connect standard input to the container", "the container has a terminal")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		return execError(c.attach(namespace, rest[0], container, interactive, tty))
	}
	return cmd
}

// attach connects our streams to a container's.
func (c *cli) attach(namespace, name, container string, interactive, tty bool) error {
	runtime, id, err := c.running(namespace, name, container)
	if err != nil {
		return err
	}
	resp, err := runtime.Attach(c.ctx, &cri.AttachRequest{
		ContainerId: id, Tty: tty, Stdin: interactive, Stdout: true, Stderr: !tty,
	})
	if err != nil {
		return criruntime.Fault(err)
	}
	return c.stream(resp.Url, c.streams(interactive, tty))
}
