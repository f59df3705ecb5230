package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// editCommand opens an object of the local API in an editor.
func editCommand(c *cli) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{Use: "edit TYPE/NAME", Short: "edit an object with KUBE_EDITOR, VISUAL or EDITOR, or else vi", ValidArgsFunction: c.completeNamed}
	namespaceFlag(cmd.Flags(), &namespace)
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		what, err := targets(rest, true)
		if err != nil {
			return err
		}
		if len(what) != 1 || what[0].name == "" {
			return usageError("edit takes one object: TYPE/NAME")
		}
		return c.edit(chosen{what[0], namespace})
	}
	return cmd
}

func (c *cli) edit(t chosen) error {
	o, err := c.given(t)
	if err != nil {
		return err
	}
	version := within(o, "metadata")["resourceVersion"]
	delete(within(o, "metadata"), "resourceVersion")
	before, err := yaml.Marshal(o)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("", "crisp-edit-*.yaml")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(before); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if err := c.runEditor(f.Name()); err != nil { // also if the user cancels, as by :cq of vi
		return errors.Join(fmt.Errorf("editor: %w; nothing was changed", err), os.Remove(f.Name()))
	}
	after, err := os.ReadFile(f.Name())
	if err != nil {
		return err
	}
	if bytes.Equal(bytes.TrimSpace(before), bytes.TrimSpace(after)) || len(bytes.TrimSpace(after)) == 0 {
		fmt.Fprintf(c.stdout, "%s unchanged\n", t)
		return os.Remove(f.Name())
	}
	var changed map[string]any
	if err := yaml.Unmarshal(after, &changed); err != nil {
		return &exitError{exitInvalid, fmt.Sprintf("%v; what you have written is in %s", err, f.Name())}
	}
	within(changed, "metadata")["resourceVersion"] = version
	outcome, err := c.replace(t, changed)
	if err != nil {
		fmt.Fprintf(c.stderr, "crisp: what you have written is in %s\n", f.Name())
		return err
	}
	fmt.Fprintln(c.stdout, t, outcome)
	return os.Remove(f.Name())
}

// runEditor opens a file in the user's editor, which may be a command with arguments.
func (c *cli) runEditor(path string) error {
	words := []string{"vi"}
	for _, name := range []string{"KUBE_EDITOR", "VISUAL", "EDITOR"} {
		if given := strings.Fields(os.Getenv(name)); len(given) > 0 {
			words = given
			break
		}
	}
	words = append(words, path)
	cmd := exec.CommandContext(c.ctx, words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.stdin, c.stdout, c.stderr
	return cmd.Run()
}
