package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// podNames completes the first argument to the name of a pod of the namespace that is
// asked for, with prefix before it. Who presses Tab waits for the runtime a second at
// most.
func (c *cli) podNames(prefix string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.ctx, time.Second)
		defer cancel()
		hurried := *c
		hurried.ctx = ctx
		runtime, _, err := hurried.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		pods, err := hurried.pods(runtime)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []cobra.Completion
		for _, f := range pods {
			if name := prefix + f.Pod.Name; f.Pod.Namespace == cmd.Flag("namespace").Value.String() && strings.HasPrefix(name, typed) {
				names = append(names, name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
