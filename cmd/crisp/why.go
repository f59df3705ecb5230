package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/apiserver/why"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
)

func whyCommand(c *cli) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{Use: "why POD", Args: takes(1, 1, "why takes one pod"), Short: "explain in one sentence why a pod is not ready, or what its startup took", ValidArgsFunction: c.completePod}
	namespaceFlag(cmd.Flags(), &namespace)
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		_, f, err := c.connectToPod(namespace, rest[0])
		if err != nil {
			return err
		}
		facts, err := c.facts(namespace, f)
		if err != nil {
			return err
		}
		report, err := c.startupOf(f)
		if err != nil {
			return err
		}
		facts.Seen, facts.Ready, facts.Stages = report.Seen, report.Ready, report.Stages
		_, err = fmt.Fprintln(c.stdout, why.Sentence(facts, time.Now()))
		return err
	}
	return cmd
}

// facts returns what is known of a pod beside its stages.
func (c *cli) facts(namespace string, f criruntime.Found) (why.Facts, error) {
	facts := why.Facts{Pod: f.Pod}
	if p, ok := c.pullFor(namespace + "/" + f.Pod.Name); ok {
		facts.Pull = &p
	}
	var err error
	if facts.Events, err = c.events(namespace, target{podKind, f.Pod.Name}); err != nil {
		return facts, err
	}
	// Events of another pod with the same name explain nothing.
	facts.Events = slices.DeleteFunc(facts.Events, func(e v1.Event) bool { return e.InvolvedObject.UID != f.Pod.UID })
	return facts, nil
}
