package main

import (
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// exportCommand prints an object as a manifest that can be applied to create it.
func exportCommand(c *cli) *cobra.Command {
	namespace, output := "", "yaml"
	cmd := &cobra.Command{Use: "export TYPE/NAME", Short: "print an object as a manifest", ValidArgsFunction: c.completeNamed}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	outputFlag(fs, &output, "yaml", "json")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		what, err := targets(rest, true)
		if err != nil || len(what) != 1 || what[0].name == "" {
			return usageError("export takes one object: pod/NAME")
		}
		var u unstructured.Unstructured
		if err := c.fetch(pathOf(what[0].kind, namespace, what[0].name), nil, &u); err != nil {
			return err
		}
		strip(u.Object)
		delete(u.Object["metadata"].(map[string]any), "resourceVersion")
		return c.printValue(u.Object, output)
	}
	return cmd
}

// strip removes from an object what the agent has added, except its version, so that the object can
// be applied.
func strip(o map[string]any) {
	delete(o, "status")
	meta, _ := o["metadata"].(map[string]any)
	for _, key := range []string{"uid", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"} {
		delete(meta, key)
	}
	stripAnnotations(meta)
	spec, _ := o["spec"].(map[string]any)
	for _, key := range []string{"nodeName", "ephemeralContainers"} {
		delete(spec, key)
	}
	if o["kind"] == "Job" {
		delete(spec, "selector")
	}
	if template, ok := spec["template"].(map[string]any); ok {
		meta, _ := template["metadata"].(map[string]any)
		delete(meta, "creationTimestamp")
		stripAnnotations(meta)
	}
}

func stripAnnotations(meta map[string]any) {
	annotations, _ := meta["annotations"].(map[string]any)
	for key := range annotations {
		if strings.HasPrefix(key, "io.crisp.") || strings.HasPrefix(key, "kubernetes.io/config.") {
			delete(annotations, key)
		}
	}
	if len(annotations) == 0 {
		delete(meta, "annotations")
	}
}
