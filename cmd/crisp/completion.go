package main

import (
	"context"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/spf13/cobra"
)

// hurried returns c with a limit of one second, for a user who waits for a completion.
func (c *cli) hurried() (*cli, context.CancelFunc) {
	h := *c
	var cancel context.CancelFunc
	h.ctx, cancel = context.WithTimeout(c.ctx, time.Second)
	return &h, cancel
}

// starting returns the words that begin with typed, and disables the completion of files.
func starting(typed string, words []string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var fit []cobra.Completion
	seen := map[string]bool{}
	for _, w := range words {
		if strings.HasPrefix(w, typed) && !seen[w] {
			fit, seen[w] = append(fit, w), true
		}
	}
	return fit, cobra.ShellCompDirectiveNoFileComp
}

// namesOf returns the names of the objects of a kind, each with prefix, in the namespace of cmd.
func (c *cli) namesOf(cmd *cobra.Command, k api.Kind, prefix string) []string {
	h, cancel := c.hurried()
	defer cancel()
	namespace := "default"
	if f := cmd.Flag("namespace"); f != nil {
		namespace = f.Value.String()
	}
	var names []string
	if k.Name == "Pod" {
		pods, _ := h.anyPods()
		for _, f := range pods {
			if f.Pod.Namespace == namespace {
				names = append(names, prefix+f.Pod.Name)
			}
		}
		return names
	}
	items, _ := h.objects(k, namespace, nil)
	for _, u := range items {
		names = append(names, prefix+u.GetName())
	}
	return names
}

// completePod completes the first argument to a pod: "web", or "deploy/web" for one of a workload's
// pods.
func (c *cli) completePod(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.completePods(cmd, nil, typed)
}

// completePods completes every argument to a pod.
func (c *cli) completePods(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	word, _, slash := strings.Cut(typed, "/")
	if k, known := api.KindOf(word); slash && known {
		return starting(typed, c.namesOf(cmd, k, word+"/"))
	}
	return starting(typed, c.namesOf(cmd, podKind, ""))
}

// completeObjects completes "TYPE NAME..." and "TYPE/NAME...".
func (c *cli) completeObjects(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		if k, known := api.KindOf(args[0]); known {
			return starting(typed, c.namesOf(cmd, k, ""))
		}
		return c.completePods(cmd, nil, typed)
	}
	if strings.Contains(typed, "/") {
		return c.completePods(cmd, nil, typed)
	}
	var kinds []string
	for _, k := range api.Kinds {
		kinds = append(kinds, k.Plural)
	}
	return starting(typed, append(kinds, "all"))
}

// completeNamed is completeObjects, and also completes a bare name of a pod.
func (c *cli) completeNamed(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	words, directive := c.completeObjects(cmd, args, typed)
	if len(args) == 0 && !strings.Contains(typed, "/") {
		pods, _ := starting(typed, c.namesOf(cmd, podKind, ""))
		words = append(words, pods...)
	}
	return words, directive
}

// completeActs completes the first argument to a subcommand, and the following ones by then.
func completeActs(acts []string, then cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return starting(typed, acts)
		}
		return then(cmd, args[1:], typed)
	}
}

// completeImages completes arguments to the names of images.
func (c *cli) completeImages(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	h, cancel := c.hurried()
	defer cancel()
	list, err := h.images()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, image := range list {
		names = append(names, imageNames(image)...)
	}
	return starting(typed, names)
}

// completeFlags completes the values of flags that many commands have.
func (c *cli) completeFlags(cmd *cobra.Command) {
	for name, complete := range map[string]cobra.CompletionFunc{"namespace": c.completeNamespace, "container": c.completeContainer} {
		if cmd.Flags().Lookup(name) != nil {
			cmd.RegisterFlagCompletionFunc(name, complete) // fails only for a duplicate
		}
	}
}

func (c *cli) completeNamespace(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	h, cancel := c.hurried()
	defer cancel()
	pods, _ := h.anyPods()
	names := []string{"default"}
	for _, f := range pods {
		names = append(names, f.Pod.Namespace)
	}
	return starting(typed, names)
}

func (c *cli) completeContainer(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	h, cancel := c.hurried()
	defer cancel()
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	f, err := h.connectToPod(cmd.Flag("namespace").Value.String(), args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return starting(typed, containerNames(statusesOf(f.Pod)))
}
