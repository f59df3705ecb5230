package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/apiserver/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// columns returns the writer of a table and writes its header. The rows appear when it is flushed.
func (c *cli) columns(heads ...string) *tabwriter.Writer {
	t := newTable(c.stdout)
	row(t, false, "", heads)
	return t
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 3, ' ', 0) }

// row writes a row, with the namespace in front if all are shown.
func row(w io.Writer, all bool, namespace string, cells []string) {
	if all {
		cells = append([]string{namespace}, cells...)
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// A view prints objects of one kind for get: with the columns that the agent has for kubectl, and
// columns of crisp. A pod's address is always shown, since on a single node nothing resolves pods'
// names.
type view struct {
	kind     api.Kind
	headless bool
	columns  []column
	prefix   string            // for names if several kinds are shown: "pod/"
	pulling  map[string]string // progress of the pull that a pod waits for, by namespace/name
	now      time.Time
}

type column struct {
	head string
	cell func(manifest.Object) string
}

// newView returns a view with the columns for o. sandboxes has the short IDs of pods' sandboxes by
// UID for wide output; without it they are not shown.
func newView(k api.Kind, o getOptions, sandboxes map[string]string) *view {
	v := &view{kind: k, headless: o.headless, now: time.Now()}
	add := func(head string, cell func(manifest.Object) string) {
		v.columns = append(v.columns, column{head, cell})
	}
	if o.all && k.Namespaced {
		add("NAMESPACE", manifest.Object.GetNamespace)
	}
	for _, c := range table.Columns(k.Name) {
		if c.Wide && o.output != "wide" && (k.Name != "Pod" || c.Name != "IP") {
			continue
		}
		add(strings.ToUpper(c.Name), func(o manifest.Object) string {
			text := fmt.Sprint(c.Cell(o, v.now))
			switch c.Name {
			case "Name":
				return v.prefix + text
			case "Status":
				return cmp.Or(v.pulling[o.GetNamespace()+"/"+o.GetName()], text)
			}
			return text
		})
	}
	if k.Name == "Pod" && o.output == "wide" && sandboxes != nil {
		add("SANDBOX", func(o manifest.Object) string { return cmp.Or(sandboxes[string(o.GetUID())], "<none>") })
	}
	if o.labels {
		add("LABELS", func(o manifest.Object) string { return labels.FormatLabels(o.GetLabels()) })
	}
	return v
}

func (v *view) heads() (heads []string) {
	for _, c := range v.columns {
		heads = append(heads, c.head)
	}
	return heads
}

func (v *view) cells(u unstructured.Unstructured) (cells []string, err error) {
	o := table.New(v.kind.Name)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		return nil, err
	}
	for _, c := range v.columns {
		cells = append(cells, c.cell(o))
	}
	return cells, nil
}

// print prints objects of the view's kind.
func (v *view) print(w io.Writer, items []unstructured.Unstructured) error {
	t := newTable(w)
	if !v.headless {
		row(t, false, "", v.heads())
	}
	for _, u := range items {
		cells, err := v.cells(u)
		if err != nil {
			return err
		}
		row(t, false, "", cells)
	}
	return t.Flush()
}

// An outputForm is the value of -o: one of some formats, or none.
type outputForm struct {
	value *string
	forms []string
}

func (f outputForm) String() string { return *f.value }

func (f outputForm) Type() string { return "string" }

func (f outputForm) Set(form string) error {
	if form != "" && !slices.Contains(f.forms, form) {
		return usageError("want %s", f.words())
	}
	*f.value = form
	return nil
}

// words lists the formats: "json, yaml or name".
func (f outputForm) words() string {
	last := len(f.forms) - 1
	return strings.TrimPrefix(strings.Join(f.forms[:last], ", ")+" or "+f.forms[last], " or ")
}

// outputFlag adds -o with these formats. Without the flag output keeps its value.
func outputFlag(fs *pflag.FlagSet, output *string, forms ...string) {
	f := outputForm{output, forms}
	fs.VarP(f, "output", "o", "`form`: "+f.words())
}

// printValue prints a value as kubectl does: as YAML, or as indented JSON.
func (c *cli) printValue(v any, form string) error {
	if form == "json" {
		e := json.NewEncoder(c.stdout)
		e.SetIndent("", "    ")
		return e.Encode(v)
	}
	data, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = c.stdout.Write(data)
	return err
}

// psCommand lists containers.
func psCommand(c *cli) *cobra.Command {
	var s selection
	var exited, quiet bool
	cmd := &cobra.Command{Use: "ps [POD...] [-A] [-a] [-q] [-l SELECTOR]", Short: "list containers", ValidArgsFunction: c.completePods}
	fs := cmd.Flags()
	s.flags(fs)
	fs.BoolVarP(&exited, "all", "a", false, "also containers that are not running")
	fs.BoolVarP(&quiet, "quiet", "q", false, "print only IDs")
	return runs(cmd, func(rest []string) error {
		pods, err := c.selected(rest, s)
		if err != nil {
			return err
		}
		t := newTable(c.stdout)
		if !quiet {
			row(t, s.all, "NAMESPACE", strings.Fields("POD CONTAINER STATE RESTARTS IMAGE ID"))
		}
		for _, f := range pods {
			for _, st := range statusesOf(f.Pod) {
				id := shortID(podsync.RuntimeID(st.ContainerID))
				switch {
				case st.State.Running == nil && !exited:
				case !quiet:
					row(t, s.all, f.Pod.Namespace, []string{f.Pod.Name, st.Name, stateShort(st.State), fmt.Sprint(st.RestartCount), st.Image, cmp.Or(id, "<none>")})
				case id != "":
					row(t, false, "", []string{id})
				}
			}
		}
		return t.Flush()
	})
}

func stateShort(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "Running"
	case s.Terminated != nil:
		return cmp.Or(s.Terminated.Reason, "Exited")
	case s.Waiting != nil:
		return s.Waiting.Reason
	}
	return "Unknown"
}
