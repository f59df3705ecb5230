package main

import (
	"errors"
	"fmt"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/spf13/cobra"
)

func validateCommand(c *cli) *cobra.Command {
	var files []string
	var mode string
	cmd := &cobra.Command{Use: "validate -f FILE", Short: "check manifests without running them"}
	fs := cmd.Flags()
	fileFlag(fs, &files)
	validateFlag(fs, &mode)
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		unknown, ok := validations[mode]
		if len(files) == 0 || len(rest) > 0 || !ok {
			return usageError("validate needs -f FILE")
		}
		docs, err := c.inputs(files)
		if err != nil {
			return err
		}
		bad := false
		for _, doc := range docs {
			objects, warnings, err := manifest.Read(doc.name, doc.data, manifest.Options{Unknown: unknown})
			if len(warnings) > 0 {
				fmt.Fprintln(c.stderr, warnings)
			}
			if errs, ok := errors.AsType[manifest.Errors](err); ok {
				fmt.Fprintln(c.stderr, errs)
				bad = true
				continue
			}
			for _, o := range objects {
				fmt.Fprintf(c.stdout, "%s: %s is valid\n", doc.name, manifest.Key(o))
			}
		}
		if bad {
			return &exitError{code: exitInvalid}
		}
		return nil
	}
	return cmd
}
