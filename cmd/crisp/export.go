package main

import (
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
)

// exportCommand prints an object as a manifest that makes it again.
func exportCommand(c *cli) *cobra.Command {
	namespace, output := "", "yaml"
	cmd := &cobra.Command{Use: "export TYPE/NAME", Short: "print an object as a manifest"}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	outputFlag(fs, &output, "yaml", "json")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		what, err := targets(rest, true)
		if err != nil || len(what) != 1 || what[0].name == "" {
			return usageError("export takes one object: pod/NAME")
		}
		items, _, err := c.collect(what, getOptions{namespace: namespace})
		if err != nil {
			return err
		}
		if len(items) == 0 {
			return fault.NotFound.Errorf("there is no %s", what[0])
		}
		o := items[0].Object
		delete(o, "status")
		meta, _ := o["metadata"].(map[string]any)
		for _, key := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"} {
			delete(meta, key)
		}
		annotations, _ := meta["annotations"].(map[string]any)
		for key := range annotations {
			if strings.HasPrefix(key, "io.crisp.") || strings.HasPrefix(key, "kubernetes.io/config.") {
				delete(annotations, key)
			}
		}
		if len(annotations) == 0 {
			delete(meta, "annotations")
		}
		if spec, ok := o["spec"].(map[string]any); ok {
			for _, key := range []string{"nodeName", "ephemeralContainers"} {
				delete(spec, key)
			}
		}
		return c.printValue(o, output)
	}
	return cmd
}
