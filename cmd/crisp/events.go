package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// events returns the events of a namespace ("" for all), the latest at the end. If no agent runs it
// reads the agent's file.
func (c *cli) events(namespace string, on target) ([]v1.Event, error) {
	var list []v1.Event
	var events v1.EventList
	if err := c.fetch("/api/v1/events", nil, &events); err == nil {
		list = events.Items
	} else if list, err = event.Read(filepath.Join(c.agentRoot, "events")); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(e v1.Event) bool {
		o := e.InvolvedObject
		return namespace != "" && o.Kind != "Node" && e.Namespace != namespace || on.name != "" && (o.Kind != on.kind.Name || o.Name != on.name)
	}), nil
}

func eventsCommand(c *cli) *cobra.Command {
	o := getOptions{}
	var of string
	cmd := &cobra.Command{Use: "events [--for pod/NAME] [-w]", Args: takesNone(""), Short: "show events"}
	fs := cmd.Flags()
	namespaceFlag(fs, &o.namespace)
	fs.BoolVarP(&o.all, "all-namespaces", "A", false, "of all namespaces")
	fs.StringVar(&of, "for", "", "only of this `object`, such as pod/web")
	outputFlag(fs, &o.output, "json", "yaml", "name")
	fs.BoolVarP(&o.watch, "watch", "w", false, "keep printing new events")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		var on target
		if of != "" {
			list, err := targets([]string{of}, true)
			if err != nil {
				return err
			}
			on = list[0]
		}
		if o.watch {
			if on.name != "" {
				o.fields = "involvedObject.kind=" + on.kind.Name + ",involvedObject.name=" + on.name
			}
			kind, _ := api.KindOf("event")
			return c.watch([]target{{kind, ""}}, o)
		}
		list, err := c.events(o.within(), on)
		if err != nil {
			return err
		}
		switch o.output {
		case "json", "yaml":
			return c.printValue(map[string]any{"apiVersion": "v1", "kind": "List", "items": list}, o.output)
		case "name":
			for _, e := range list {
				fmt.Fprintln(c.stdout, "event/"+e.Name)
			}
			return nil
		}
		if len(list) == 0 {
			fmt.Fprintln(c.stderr, "crisp: no events")
			return nil
		}
		t := c.columns("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
		for _, e := range list {
			row(t, false, "", eventCells(e))
		}
		return t.Flush()
	}
	return cmd
}

func eventCells(e v1.Event) []string {
	seen := duration.HumanDuration(time.Since(e.LastTimestamp.Time))
	if e.Count > 1 {
		seen += fmt.Sprintf(" (x%d over %s)", e.Count, duration.HumanDuration(time.Since(e.FirstTimestamp.Time)))
	}
	object := strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name
	if _, container, ok := strings.Cut(e.InvolvedObject.FieldPath, "{"); ok {
		object += "/" + strings.TrimSuffix(container, "}")
	}
	return []string{seen, cmp.Or(e.Type, "Normal"), e.Reason, object, e.Message}
}
