package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/apiserver/api"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// watch prints the existing objects and each change, until it is interrupted.
func (c *cli) watch(what []target, o getOptions) error {
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
	// The columns cannot adapt to later lines. They are wide enough for most.
	line := func(cells []string) error {
		for i := range cells[:len(cells)-1] {
			cells[i] = fmt.Sprintf("%-*s", 12+8*(1-min(i, 1)), cells[i])
		}
		_, err := fmt.Fprintln(c.stdout, strings.Join(cells, "   "))
		return err
	}
	v := newView(k, o)
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
