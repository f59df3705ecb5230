package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/apiserver/table"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
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
	kind    api.Kind
	columns []table.Column
	o       getOptions
	prefix  string            // for names if several kinds are shown: "pod/"
	boxes   map[string]string // short ID of the sandbox by a pod's UID, for wide output
	pulling map[string]string // progress of the pull that a pod waits for, by namespace/name
	now     time.Time
}

func newView(k api.Kind, o getOptions) view {
	v := view{kind: k, o: o, now: time.Now()}
	for _, c := range table.Columns(k.Name) {
		if !c.Wide || o.output == "wide" || k.Name == "Pod" && c.Name == "IP" {
			v.columns = append(v.columns, c)
		}
	}
	return v
}

func (v view) namespaced() bool { return v.o.all && v.kind.Namespaced }

func (v view) showsBoxes() bool {
	return v.kind.Name == "Pod" && v.o.output == "wide" && v.boxes != nil
}

func (v view) heads() []string {
	var heads []string
	if v.namespaced() {
		heads = append(heads, "NAMESPACE")
	}
	for _, c := range v.columns {
		heads = append(heads, strings.ToUpper(c.Name))
	}
	if v.showsBoxes() {
		heads = append(heads, "SANDBOX")
	}
	if v.o.labels {
		heads = append(heads, "LABELS")
	}
	return heads
}

func (v view) cells(u unstructured.Unstructured) ([]string, error) {
	o := table.New(v.kind.Name)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		return nil, err
	}
	return v.cellsOf(o), nil
}

func (v view) cellsOf(o manifest.Object) []string {
	var cells []string
	if v.namespaced() {
		cells = append(cells, o.GetNamespace())
	}
	for _, c := range v.columns {
		text := fmt.Sprint(c.Cell(o, v.now))
		switch c.Name {
		case "Name":
			text = v.prefix + text
		case "Status":
			text = cmp.Or(v.pulling[o.GetNamespace()+"/"+o.GetName()], text)
		}
		cells = append(cells, text)
	}
	if v.showsBoxes() {
		cells = append(cells, cmp.Or(v.boxes[string(o.GetUID())], "<none>"))
	}
	if v.o.labels {
		cells = append(cells, labels.FormatLabels(o.GetLabels()))
	}
	return cells
}

// print prints objects of the view's kind.
func (v view) print(w io.Writer, items []unstructured.Unstructured) error {
	t := newTable(w)
	if !v.o.headless {
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
