package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/crisp-cri/crisp/agent/api"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/jsonpath"
)

// collect fetches the objects that the arguments name.
func (c *cli) collect(what []target, o getOptions) (items []unstructured.Unstructured, one bool, err error) {
	namespace := o.namespace
	if o.all {
		namespace = ""
	}
	for _, t := range what {
		if t.name == "" {
			list, _, err := c.objects(t.kind, namespace, url.Values{"labelSelector": {o.selector}})
			if err != nil {
				return nil, false, err
			}
			items = append(items, list...)
			continue
		}
		var u unstructured.Unstructured
		if err := c.fetch(pathOf(t.kind, o.namespace, t.name), nil, &u); err != nil {
			return nil, false, err
		}
		items = append(items, u)
	}
	return items, len(what) == 1 && what[0].name != "", nil
}

// getObjects shows objects of the agent's.
func (c *cli) getObjects(what []target, o getOptions) error {
	items, one, err := c.collect(what, o)
	if err != nil {
		return err
	}
	switch o.output {
	case "name":
		for _, u := range items {
			fmt.Fprintln(c.stdout, nameOf(u))
		}
		return nil
	case "json", "yaml":
		return c.printValue(listOf(items, one), o.output)
	}
	if len(items) == 0 {
		fmt.Fprintf(c.stderr, "crisp: no %s\n", what[0].kind.Plural)
		return nil
	}
	t := tabwriter.NewWriter(c.stdout, 0, 0, 3, ' ', 0)
	columns := columnsOf(what[0].kind, o.output == "wide")
	row(t, o.all && what[0].kind.Namespaced, "NAMESPACE", head(columns))
	for _, u := range items {
		row(t, o.all && what[0].kind.Namespaced, u.GetNamespace(), cells(columns, u))
	}
	return t.Flush()
}

func nameOf(u unstructured.Unstructured) string {
	k, _ := api.KindOf(u.GetKind())
	return k.Singular + "/" + u.GetName()
}

// listOf is one object or a List of them, as kubectl writes it.
func listOf(items []unstructured.Unstructured, one bool) any {
	if one {
		return items[0].Object
	}
	objects := []any{}
	for _, u := range items {
		objects = append(objects, u.Object)
	}
	return map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}, "items": objects}
}

// A column is one of a kind's table.
type column struct {
	head string
	cell func(unstructured.Unstructured) string
}

func field(path ...string) func(unstructured.Unstructured) string {
	return func(u unstructured.Unstructured) string {
		v, ok, err := unstructured.NestedFieldNoCopy(u.Object, path...)
		if !ok || err != nil {
			return "<none>"
		}
		return fmt.Sprint(v)
	}
}

func number(path ...string) func(unstructured.Unstructured) string {
	return func(u unstructured.Unstructured) string {
		n, _, _ := unstructured.NestedInt64(u.Object, path...)
		return fmt.Sprint(n)
	}
}

func age(u unstructured.Unstructured) string {
	if at := u.GetCreationTimestamp(); !at.IsZero() {
		return duration.HumanDuration(time.Since(at.Time))
	}
	return "<none>"
}

// count is how many keys the maps at these fields have.
func count(fields ...string) func(unstructured.Unstructured) string {
	return func(u unstructured.Unstructured) string {
		n := 0
		for _, f := range fields {
			m, _, _ := unstructured.NestedMap(u.Object, f)
			n += len(m)
		}
		return fmt.Sprint(n)
	}
}

func columnsOf(k api.Kind, wide bool) []column {
	name := column{"NAME", func(u unstructured.Unstructured) string { return u.GetName() }}
	var own []column
	switch k.Name {
	case "ConfigMap":
		own = []column{{"DATA", count("data", "binaryData")}}
	case "Secret":
		own = []column{{"TYPE", field("type")}, {"DATA", count("data")}}
	case "RuntimeClass":
		own = []column{{"HANDLER", field("handler")}}
	case "Deployment":
		own = []column{{"READY", slash(number("status", "readyReplicas"), number("spec", "replicas"))}, {"UP-TO-DATE", number("status", "updatedReplicas")}, {"AVAILABLE", number("status", "availableReplicas")}}
	case "DaemonSet":
		own = []column{{"READY", slash(number("status", "numberReady"), number("status", "desiredNumberScheduled"))}, {"UP-TO-DATE", number("status", "updatedNumberScheduled")}}
	case "Job":
		own = []column{{"STATUS", jobWord}, {"COMPLETIONS", slash(number("status", "succeeded"), field("spec", "completions"))}, {"FAILED", number("status", "failed")}}
	case "Namespace":
		own = []column{{"STATUS", field("status", "phase")}}
	case "Node":
		own = []column{{"STATUS", nodeWord}, {"VERSION", field("status", "nodeInfo", "kubeletVersion")}}
	case "Event":
		return []column{
			{"LAST SEEN", lastSeen}, {"TYPE", field("type")}, {"REASON", field("reason")},
			{"OBJECT", func(u unstructured.Unstructured) string {
				return strings.ToLower(field("involvedObject", "kind")(u)) + "/" + field("involvedObject", "name")(u)
			}},
			{"COUNT", field("count")}, {"MESSAGE", field("message")},
		}
	}
	columns := append(append([]column{name}, own...), column{"AGE", age})
	if wide {
		columns = append(columns, column{"SOURCE", func(u unstructured.Unstructured) string {
			return cmp.Or(u.GetAnnotations()["io.crisp.config.file"], u.GetAnnotations()["kubernetes.io/config.source"], "<none>")
		}})
	}
	return columns
}

func slash(a, b func(unstructured.Unstructured) string) func(unstructured.Unstructured) string {
	return func(u unstructured.Unstructured) string { return a(u) + "/" + b(u) }
}

func jobWord(u unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	if len(conditions) > 0 {
		m, _ := conditions[0].(map[string]any)
		return fmt.Sprint(m["type"])
	}
	return "Running"
}

func nodeWord(u unstructured.Unstructured) string {
	var n v1.Node
	if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &n) != nil {
		return "Unknown"
	}
	return status.NodeWord(&n)
}

func lastSeen(u unstructured.Unstructured) string {
	at, err := time.Parse(time.RFC3339, field("lastTimestamp")(u))
	if err != nil {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(at))
}

func head(columns []column) []string {
	var heads []string
	for _, c := range columns {
		heads = append(heads, c.head)
	}
	return heads
}

func cells(columns []column, u unstructured.Unstructured) []string {
	var list []string
	for _, c := range columns {
		list = append(list, c.cell(u))
	}
	return list
}

func row(w io.Writer, all bool, namespace string, cells []string) {
	if all {
		cells = append([]string{namespace}, cells...)
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// getTemplate shows objects by a template.
func (c *cli) getTemplate(what []target, o getOptions, kind, text string) error {
	items, one, err := c.collect(what, o)
	if err != nil {
		return err
	}
	v := listOf(items, one)
	if kind == "jsonpath" {
		p := jsonpath.New("get").AllowMissingKeys(true)
		if err := p.Parse(text); err != nil {
			return usageError("-o jsonpath: %v", err)
		}
		return p.Execute(c.stdout, v)
	}
	t, err := template.New("get").Parse(text)
	if err != nil {
		return usageError("-o go-template: %v", err)
	}
	return t.Execute(c.stdout, v)
}

// watch shows what is there and each change of it, until it is interrupted.
func (c *cli) watch(what []target, o getOptions) error {
	if len(what) != 1 {
		return usageError("only objects of one kind, or one object, can be watched")
	}
	t := what[0]
	query := url.Values{"watch": {"true"}, "labelSelector": {o.selector}}
	if t.name != "" {
		query.Set("fieldSelector", "metadata.name="+t.name)
	}
	namespace := o.namespace
	if o.all {
		namespace = ""
	}
	return c.follow(pathOf(t.kind, namespace, ""), query, c.watchPrinter(t.kind, o))
}

// follow shows the objects of a watch.
func (c *cli) follow(path string, query url.Values, show func(unstructured.Unstructured) error) error {
	resp, err := c.ask(http.MethodGet, path, query, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for changes := json.NewDecoder(resp.Body); ; {
		var change struct {
			Type   string
			Object unstructured.Unstructured
		}
		if err := changes.Decode(&change); err != nil {
			if c.ctx.Err() != nil || errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := show(change.Object); err != nil {
			return err
		}
	}
}

// watchPrinter prints objects as they come, a line each or a document.
func (c *cli) watchPrinter(k api.Kind, o getOptions) func(unstructured.Unstructured) error {
	switch o.output {
	case "json", "yaml":
		return func(u unstructured.Unstructured) error {
			if o.output == "yaml" {
				fmt.Fprintln(c.stdout, "---")
			}
			return c.printValue(u.Object, o.output)
		}
	case "name":
		return func(u unstructured.Unstructured) error {
			_, err := fmt.Fprintln(c.stdout, nameOf(u))
			return err
		}
	}
	// Columns cannot be as wide as what comes later: they are made wide enough
	// for most.
	line := func(cells []string) error {
		for i := range cells[:len(cells)-1] {
			cells[i] = fmt.Sprintf("%-*s", 12+8*(1-min(i, 1)), cells[i])
		}
		_, err := fmt.Fprintln(c.stdout, strings.Join(cells, "   "))
		return err
	}
	columns := columnsOf(k, o.output == "wide")
	first := true
	return func(u unstructured.Unstructured) error {
		if k.Name == "Pod" {
			var pod v1.Pod
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &pod); err != nil {
				return err
			}
			if first {
				first = false
				if err := line([]string{"NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"}); err != nil {
					return err
				}
			}
			return line(cellsOf(&pod, time.Now()))
		}
		if first {
			first = false
			if err := line(head(columns)); err != nil {
				return err
			}
		}
		return line(cells(columns, u))
	}
}
