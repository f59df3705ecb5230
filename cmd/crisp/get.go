package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/jsonpath"
)

// getOptions has the flags of get.
type getOptions struct {
	selection
	output, fields, sort    string
	watch, headless, labels bool
}

// forms has the values of -o.
var forms = []string{"wide", "json", "yaml", "name"}

const formsText = "wide, json, yaml, name, jsonpath=TEMPLATE or go-template=TEMPLATE"

func getCommand(c *cli) *cobra.Command {
	o := getOptions{}
	cmd := &cobra.Command{
		Use:   "get TYPE[,TYPE...]|all [NAME...] | TYPE/NAME... [-n NAMESPACE | -A] [-l SELECTOR] [-o wide|json|yaml|name|jsonpath=…] [-w]",
		Short: "list pods and other objects", Args: takes(1, many, "get what? pods"), ValidArgsFunction: c.completeObjects,
	}
	fs := cmd.Flags()
	o.flags(fs)
	fs.StringVarP(&o.output, "output", "o", "", "`form`: "+formsText)
	fs.StringVar(&o.fields, "field-selector", "", "only objects whose fields match the `selector`, such as status.phase=Running")
	fs.StringVar(&o.sort, "sort-by", "", "sort by the field at this `JSONPath`, such as .metadata.creationTimestamp")
	fs.BoolVar(&o.headless, "no-headers", false, "print no column headers")
	fs.BoolVar(&o.labels, "show-labels", false, "show labels in the last column")
	fs.BoolVarP(&o.watch, "watch", "w", false, "keep printing changes")
	return runs(cmd, func(rest []string) error {
		what, err := objectNames(rest, false)
		if err != nil {
			return err
		}
		kind, _, templated := strings.Cut(o.output, "=")
		if templated && kind != "jsonpath" && kind != "go-template" || !templated && o.output != "" && !slices.Contains(forms, o.output) {
			return usageError("-o %s: want %s", o.output, formsText)
		}
		if o.watch {
			return c.watch(what, o)
		}
		return c.get(what, o)
	})
}

// get prints the objects that the arguments name.
func (c *cli) get(what []objectName, o getOptions) error {
	items, sandboxes, err := c.gather(what, o)
	if err != nil {
		return err
	}
	if err := sortBy(items, o.sort); err != nil {
		return err
	}
	one := len(what) == 1 && what[0].name != ""
	if kind, text, ok := strings.Cut(o.output, "="); ok {
		return c.printTemplate(listOf(items, one), kind, text)
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
	if what[0].kind.Name == "Pod" && what[0].name == "" {
		for _, text := range c.brokenManifests() { // their pods may be missing, or old
			fmt.Fprintln(c.stderr, "crisp: broken manifest:", text)
		}
	}
	if len(items) == 0 {
		fmt.Fprintf(c.stderr, "crisp: no %s\n", strings.Join(plurals(what), " or "))
		return nil
	}
	return c.printTables(items, sandboxes, o)
}

// printTables prints a table for each kind in items.
func (c *cli) printTables(items []unstructured.Unstructured, sandboxes map[string]string, o getOptions) error {
	var kinds []string
	for _, u := range items {
		if !slices.Contains(kinds, u.GetKind()) {
			kinds = append(kinds, u.GetKind())
		}
	}
	for i, name := range kinds {
		if i > 0 {
			fmt.Fprintln(c.stdout)
		}
		kind, _ := api.KindOf(name)
		same := slices.DeleteFunc(slices.Clone(items), func(u unstructured.Unstructured) bool { return u.GetKind() != name })
		v := newView(kind, o, sandboxes)
		if len(kinds) > 1 {
			v.prefix = kind.Singular + "/"
		}
		if kind.Name == "Pod" {
			v.pulling = c.pulling(podsIn(same))
		}
		if err := v.print(c.stdout, same); err != nil {
			return err
		}
	}
	return nil
}

// gather returns the objects that the arguments name, and the sandboxes of pods. For pods either
// the runtime or the agent is enough.
func (c *cli) gather(what []objectName, o getOptions) (items []unstructured.Unstructured, sandboxes map[string]string, err error) {
	var pods []criruntime.Found
	for _, t := range what {
		switch {
		case t.kind.Name == "Pod" && o.fields == "":
			if sandboxes == nil {
				if pods, err = c.anyPods(); err != nil {
					return nil, nil, err
				}
				sandboxes = map[string]string{}
			}
			list, err := podsOf(pods, t, o)
			if err != nil {
				return nil, nil, err
			}
			for _, f := range list {
				u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(f.Pod)
				if err != nil {
					return nil, nil, err
				}
				u["apiVersion"], u["kind"] = "v1", "Pod"
				sandboxes[string(f.Pod.UID)] = sandbox(f)
				items = append(items, unstructured.Unstructured{Object: u})
			}
		case t.name != "":
			var u unstructured.Unstructured
			if err := c.fetch(pathOf(t.kind, o.namespace, t.name), nil, &u); err != nil {
				return nil, nil, err
			}
			items = append(items, u)
		default:
			list, err := c.objects(t.kind, o.within(), url.Values{"labelSelector": {o.selector}, "fieldSelector": {o.fields}})
			if err != nil {
				return nil, nil, err
			}
			items = append(items, list...)
		}
	}
	return items, sandboxes, nil
}

// podsOf returns the pods that an argument names. While one pod replaces another, both have the same name;
// output for programs then has only the wanted one.
func podsOf(pods []criruntime.Found, t objectName, o getOptions) (list []criruntime.Found, err error) {
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return nil, usageError("-l %s: %v", o.selector, err)
	}
	for _, f := range pods {
		if !o.has(f.Pod.Namespace) || t.name != "" && f.Pod.Name != t.name || !selector.Matches(labels.Set(f.Pod.Labels)) {
			continue
		}
		if last := len(list) - 1; t.name != "" && o.output != "" && o.output != "wide" && last >= 0 {
			if list[last].Pod.DeletionTimestamp != nil || f.Pod.DeletionTimestamp == nil && list[last].Pod.CreationTimestamp.Before(&f.Pod.CreationTimestamp) {
				list[last] = f
			}
			continue
		}
		list = append(list, f)
	}
	if t.name != "" && len(list) == 0 {
		return nil, t.missing(o.namespace)
	}
	return list, nil
}

// anyPods lists the pods of the runtime, or of the agent if the runtime does not answer.
func (c *cli) anyPods() ([]criruntime.Found, error) {
	err := c.connect()
	if err == nil {
		return c.pods()
	}
	pods, ok := c.podsOfAgent()
	if !ok {
		return nil, err
	}
	fmt.Fprintf(c.stderr, "crisp: %v\n", err)
	list := merge(nil, pods)
	criruntime.SortFound(list)
	return list, nil
}

func nameOf(u unstructured.Unstructured) string {
	k, _ := api.KindOf(u.GetKind())
	return k.Singular + "/" + u.GetName()
}

func plurals(what []objectName) []string {
	var words []string
	for _, t := range what {
		if !slices.Contains(words, t.kind.Plural) {
			words = append(words, t.kind.Plural)
		}
	}
	return words
}

// listOf returns one object, or a List of several, as kubectl prints them.
func listOf(items []unstructured.Unstructured, one bool) any {
	if one && len(items) == 1 {
		return items[0].Object
	}
	objects := []any{}
	for _, u := range items {
		objects = append(objects, u.Object)
	}
	return map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}, "items": objects}
}

// printTemplate prints a value with a template.
func (c *cli) printTemplate(v any, kind, text string) error {
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

// sortBy sorts objects by the field at a JSONPath, numerically if the values are numbers, else as
// text. Objects without the field come first.
func sortBy(items []unstructured.Unstructured, path string) error {
	if path == "" {
		return nil
	}
	path = "{." + strings.Trim(path, "{}.") + "}"
	p := jsonpath.New("sort").AllowMissingKeys(true)
	if err := p.Parse(path); err != nil {
		return usageError("--sort-by: %v", err)
	}
	key := func(u unstructured.Unstructured) (number float64, text string) {
		found, err := p.FindResults(u.Object)
		if err != nil || len(found) == 0 || len(found[0]) == 0 {
			return 0, ""
		}
		switch v := found[0][0].Interface().(type) {
		case int64:
			return float64(v), ""
		case float64:
			return v, ""
		default:
			return 0, fmt.Sprint(v)
		}
	}
	slices.SortStableFunc(items, func(a, b unstructured.Unstructured) int {
		m, x := key(a)
		n, y := key(b)
		return cmp.Or(cmp.Compare(m, n), cmp.Compare(x, y))
	})
	return nil
}

func sandbox(f criruntime.Found) string {
	if len(f.Have.Sandboxes) == 0 {
		return "<none>"
	}
	return shortID(f.Have.Sandboxes[0].ID)
}

// shortID returns a prefix of an ID that is long enough to be unique.
func shortID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), 13)]
}

// watch prints the existing objects and each change, until it is interrupted.
func (c *cli) watch(what []objectName, o getOptions) error {
	if len(what) != 1 {
		return usageError("only objects of one kind, or one object, can be watched")
	}
	t := what[0]
	query := url.Values{"watch": {"true"}, "labelSelector": {o.selector}, "fieldSelector": {o.fields}}
	if t.name != "" {
		query.Set("fieldSelector", "metadata.name="+t.name)
	}
	path, show := pathOf(t.kind, o.within(), ""), c.watchPrinter(t.kind, o)
	if t.kind.Name != "Pod" || o.output != "" && o.output != "wide" {
		return c.follow(path, query, func(u unstructured.Unstructured) error { return show(u, "") })
	}
	w := &pullWatch{show: show, pods: map[string]unstructured.Unstructured{}, shown: map[string]string{}}
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.watchPulls(ctx, w)
	}()
	err := c.follow(path, query, w.changed)
	cancel()
	<-done
	return err
}

// follow calls show for each object of a watch.
func (c *cli) follow(path string, query url.Values, show func(unstructured.Unstructured) error) error {
	resp, err := c.ask(http.MethodGet, path, query, nil)
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

// watchPrinter returns a function that prints an object, as a line or a document. pulling, if not
// "", is the progress of the pull that a pod waits for, and replaces the status in a line.
func (c *cli) watchPrinter(k api.Kind, o getOptions) func(u unstructured.Unstructured, pulling string) error {
	switch o.output {
	case "json", "yaml":
		return func(u unstructured.Unstructured, _ string) error {
			if o.output == "yaml" {
				fmt.Fprintln(c.stdout, "---")
			}
			return c.printValue(u.Object, o.output)
		}
	case "name":
		return func(u unstructured.Unstructured, _ string) error {
			_, err := fmt.Fprintln(c.stdout, nameOf(u))
			return err
		}
	}
	// The columns cannot adapt to later lines: they are as wide as existing objects need.
	v := newView(k, o, nil)
	widths := make([]int, len(v.columns))
	for i, head := range v.heads() {
		widths[i] = max(len(head), map[string]int{"NAME": 20, "STATUS": len("ContainerCreating")}[head])
	}
	existing, _ := c.objects(k, o.within(), url.Values{"labelSelector": {o.selector}, "fieldSelector": {o.fields}}) // else the watch fails
	for _, u := range existing {
		if cells, err := v.cells(u); err == nil {
			for i, cell := range cells {
				widths[i] = max(widths[i], len(cell))
			}
		}
	}
	line := func(cells []string) error {
		for i := range cells[:len(cells)-1] {
			cells[i] = fmt.Sprintf("%-*s", widths[i], cells[i])
		}
		_, err := fmt.Fprintln(c.stdout, strings.Join(cells, "   "))
		return err
	}
	first := !o.headless
	return func(u unstructured.Unstructured, pulling string) error {
		if first {
			first = false
			if err := line(v.heads()); err != nil {
				return err
			}
		}
		v.now, v.pulling = time.Now(), map[string]string{u.GetNamespace() + "/" + u.GetName(): pulling}
		cells, err := v.cells(u)
		if err != nil {
			return err
		}
		return line(cells)
	}
}
