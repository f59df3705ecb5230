package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/timeline"
)

// startupOf returns the timeline of a pod's start: from the agent with the runtime's stages or, for
// a pod that is not the agent's, such as a kubelet's, only from the runtime.
func (c *cli) startupOf(f criruntime.Found) (startup.Report, error) {
	var r startup.Report
	if c.agentRuns() {
		err := c.fetch("/crisp/v1/namespaces/"+f.Pod.Namespace+"/pods/"+f.Pod.Name+"/startup", nil, &r)
		if err == nil || !errors.Is(err, fault.NotFound) {
			return r, err
		}
	}
	runtime, _, err := c.connect()
	if err != nil { // the agent has the pod, which is enough to print it
		return r, nil
	}
	r.Pod = timeline.Pod{UID: string(f.Pod.UID), Namespace: f.Pod.Namespace, Name: f.Pod.Name}
	r.Stages = criruntime.Startup(c.ctx, runtime, string(f.Pod.UID))
	if len(r.Stages) > 0 {
		r.Seen = r.Stages[0].Begin
		for _, s := range r.Stages { // the runtime does not know when a pod is ready
			if s.Name == "start" && s.End.After(r.Ready) {
				r.Ready = s.End
			}
		}
	}
	return r, nil
}

// barWidth is the width of a waterfall in characters.
const barWidth = 40

// describeStartup prints the timeline of the pod's start, if it is known.
func (c *cli) describeStartup(f criruntime.Found) error {
	r, err := c.startupOf(f)
	if err != nil || len(r.Stages) == 0 {
		return err
	}
	now := time.Now()
	until := r.Until(now)
	switch {
	case !r.Ready.IsZero():
		fmt.Fprintf(c.stdout, "Start-up: %s, %.0f %% of which are accounted for\n", timeline.Brief(until.Sub(r.Seen)), 100*r.Covered(now))
	case ready(f.Pod):
		until = r.Seen
		for _, s := range r.Stages {
			if s.End.After(until) {
				until = s.End
			}
		}
		fmt.Fprintln(c.stdout, "Start-up:")
	default:
		fmt.Fprintf(c.stdout, "Start-up: not ready for %s, %.0f %% of which are accounted for\n", timeline.Brief(until.Sub(r.Seen)), 100*r.Covered(now))
	}
	t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	for _, row := range timeline.Draw(r.Stages, r.Seen, until, barWidth) {
		fmt.Fprintf(t, "  %s\t%s\t%s\t|%s|\t%s\n", row.Label, row.Begin, row.Took, row.Bar, strings.Join(strings.Fields(row.Note), " "))
	}
	return t.Flush()
}
