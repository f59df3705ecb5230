package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/crisp-cri/crisp/agent/api"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
)

func getCommand(c *cli) *cobra.Command {
	o := getOptions{}
	cmd := &cobra.Command{Use: "get pods|TYPE [NAME...] [-n NAMESPACE | -A] [-o wide|json|yaml|name|jsonpath=…] [-w]", Short: "list pods and other objects"}
	fs := cmd.Flags()
	for _, k := range api.Kinds {
		cmd.ValidArgs = append(cmd.ValidArgs, k.Plural)
	}
	namespaceFlag(fs, &o.namespace)
	fs.BoolVarP(&o.all, "all-namespaces", "A", false, "of all namespaces")
	fs.StringVarP(&o.output, "output", "o", "", "`form`: wide, json, yaml, name, jsonpath=TEMPLATE or go-template=TEMPLATE")
	fs.StringVarP(&o.selector, "selector", "l", "", "only those whose labels fit the `selector`, such as app=web")
	fs.BoolVarP(&o.watch, "watch", "w", false, "go on with what changes")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) == 0 {
			return usageError("get what? pods")
		}
		what, err := targets(rest, false)
		if err != nil {
			return err
		}
		kind, template, _ := strings.Cut(o.output, "=")
		if kind == "jsonpath" || kind == "go-template" {
			return c.getTemplate(what, o, kind, template)
		}
		if _, ok := printers[o.output]; !ok {
			return usageError("-o %s: want wide, json, yaml, name, jsonpath=TEMPLATE or go-template=TEMPLATE", o.output)
		}
		if o.watch {
			return c.watch(what, o)
		}
		if what[0].kind.Name != "Pod" {
			return c.getObjects(what, o)
		}
		return c.getPods(what, o)
	}
	return cmd
}

// getOptions are the flags of get.
type getOptions struct {
	namespace, output, selector string
	all, watch                  bool
}

// getPods shows pods. It needs no agent: what the runtime knows of them is shown
// without. Nor does it need the runtime, if there is an agent: then what that knows
// is shown.
func (c *cli) getPods(what []target, o getOptions) error {
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return usageError("-l %s: %v", o.selector, err)
	}
	pods, err := c.anyPods()
	if err != nil {
		return err
	}
	var list []criruntime.Found
	for _, t := range what {
		n := len(list)
		for _, f := range pods {
			if (o.all || f.Pod.Namespace == o.namespace) && (t.name == "" || f.Pod.Name == t.name) && selector.Matches(labels.Set(f.Pod.Labels)) {
				list = append(list, f)
			}
		}
		if t.name != "" && len(list) == n {
			return fault.NotFound.Errorf("there is no pod %s in namespace %s", t.name, o.namespace)
		}
	}
	if len(list) == 0 && o.output == "" {
		fmt.Fprintln(c.stderr, "crisp: no pods")
	}
	v := view{all: o.all, one: what[0].name != "" && len(list) == 1, now: time.Now()}
	if o.output == "" || o.output == "wide" {
		v.pulling = c.pulling(list)
	}
	return printers[o.output](c.stdout, list, v)
}

func (c *cli) anyPods() ([]criruntime.Found, error) {
	runtime, _, err := c.connect()
	if err == nil {
		return c.pods(runtime)
	}
	told, ok := c.podsOfAgent()
	if !ok {
		return nil, err
	}
	fmt.Fprintf(c.stderr, "crisp: %v\n", err)
	list := merge(nil, told)
	criruntime.SortFound(list)
	return list, nil
}

// A view says how pods are shown.
type view struct {
	all bool // of all namespaces
	one bool // the one that was asked for, not a list
	now time.Time
	// pulling says how far the images are that pods wait for, by namespace/name.
	pulling map[string]string
}

var printers = map[string]func(io.Writer, []criruntime.Found, view) error{
	"":     func(w io.Writer, pods []criruntime.Found, v view) error { return printTable(w, pods, v, false) },
	"wide": func(w io.Writer, pods []criruntime.Found, v view) error { return printTable(w, pods, v, true) },
	"name": printNames,
	"json": func(w io.Writer, pods []criruntime.Found, v view) error {
		return writeValue(w, object(pods, v), "json")
	},
	"yaml": func(w io.Writer, pods []criruntime.Found, v view) error {
		return writeValue(w, object(pods, v), "yaml")
	},
}

func printTable(w io.Writer, pods []criruntime.Found, v view, wide bool) error {
	if len(pods) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")) }
	head := []string{"NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"}
	if v.all {
		head = append([]string{"NAMESPACE"}, head...)
	}
	if wide {
		head = append(head, "NODE", "SOURCE", "IMAGES", "SANDBOX")
	}
	row(head...)
	for _, f := range pods {
		cells := cellsOf(f.Pod, v.now)
		if text := v.pulling[f.Pod.Namespace+"/"+f.Pod.Name]; text != "" {
			cells[2] = text
		}
		if v.all {
			cells = append([]string{f.Pod.Namespace}, cells...)
		}
		if wide {
			cells = append(cells, cmp.Or(f.Pod.Spec.NodeName, "<none>"), source(f.Pod), images(f.Pod), sandbox(f))
		}
		row(cells...)
	}
	return t.Flush()
}

func cellsOf(pod *v1.Pod, now time.Time) []string {
	ready, all := status.Count(pod)
	return []string{
		pod.Name,
		fmt.Sprintf("%d/%d", ready, all),
		status.Word(pod),
		status.Restarts(pod, now),
		duration.HumanDuration(now.Sub(pod.CreationTimestamp.Time)),
		cmp.Or(pod.Status.PodIP, "<none>"),
	}
}

func source(pod *v1.Pod) string {
	return cmp.Or(pod.Labels[podspec.LabelSource], pod.Annotations[manifest.AnnotationSource], "<none>")
}

func sandbox(f criruntime.Found) string {
	if len(f.Have.Sandboxes) == 0 {
		return "<none>"
	}
	return short(f.Have.Sandboxes[0].ID)
}

func images(pod *v1.Pod) string {
	var list []string
	for _, c := range pod.Spec.Containers {
		list = append(list, c.Image)
	}
	return cmp.Or(strings.Join(list, ","), "<none>")
}

func printNames(w io.Writer, pods []criruntime.Found, _ view) error {
	for _, f := range pods {
		fmt.Fprintln(w, "pod/"+f.Pod.Name)
	}
	return nil
}

// object is one pod or a list of them, as kubectl writes it.
func object(pods []criruntime.Found, v view) any {
	if v.one {
		return pods[0].Pod
	}
	list := v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Items: []v1.Pod{}}
	for _, f := range pods {
		list.Items = append(list.Items, *f.Pod)
	}
	return list
}

// short is as much of an ID as tells it from others.
func short(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), 13)]
}
