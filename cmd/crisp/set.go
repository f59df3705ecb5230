package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// setCommand sets the images of an object's containers.
func setCommand(c *cli) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{Use: "set image TYPE/NAME CONTAINER=IMAGE...", Short: "change the images of a pod or a workload", ValidArgs: []string{"image"}}
	namespaceFlag(cmd.Flags(), &namespace)
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		const usage = "set takes: image TYPE/NAME CONTAINER=IMAGE..."
		if len(rest) < 3 || rest[0] != "image" {
			return usageError(usage)
		}
		what, err := targets(rest[1:2], true)
		if err != nil {
			return err
		}
		outcome, err := c.change(chosen{what[0], namespace}, func(o map[string]any) error {
			spec := within(o, "spec")
			if what[0].kind.Name != "Pod" {
				spec = within(spec, "template", "spec")
			}
			for _, text := range rest[2:] {
				name, image, ok := strings.Cut(text, "=")
				if !ok || image == "" {
					return usageError(usage)
				}
				if !setImage(spec, name, image) {
					return usageError("%s has no container %s", what[0], name)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(c.stdout, what[0], outcome)
		return err
	}
	return cmd
}

// setImage sets the image of a container, or of all containers if the name is "*".
func setImage(spec map[string]any, name, image string) (found bool) {
	for _, key := range []string{"containers", "initContainers"} {
		list, _ := spec[key].([]any)
		for _, item := range list {
			if m, ok := item.(map[string]any); ok && (m["name"] == name || name == "*") {
				m["image"], found = image, true
			}
		}
	}
	return found
}
