package kubectl

import (
	"encoding/json"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/apiserver/api"
	columns "github.com/crisp-cri/crisp/apiserver/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// wantsTable reports whether a client prefers a table to all other formats that crisp has, as
// kubectl get without -o json or yaml does.
func wantsTable(r *http.Request) bool {
	for accept := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		kind, o, err := mime.ParseMediaType(strings.TrimSpace(accept))
		if err != nil || kind != "application/json" && kind != "*/*" && kind != "application/*" {
			continue // a format that crisp does not have, such as protobuf
		}
		return o["as"] == "Table" && o["g"] == "meta.k8s.io" && o["v"] == "v1"
	}
	return false
}

// tables is a ResponseWriter that returns tables: an api.Representer.
type tables struct {
	http.ResponseWriter
	r *http.Request
}

// Unwrap implements the interface of http.ResponseController.
func (w *tables) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Represent makes a table of objects of one kind. Each row has its object, or the part that
// includeObject asks for, by default the metadata.
func (w *tables) Represent(k api.Kind, objects []manifest.Object, version string) any {
	list := columns.Columns(k.Name)
	t := &metav1.Table{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"}, Rows: []metav1.TableRow{}}
	t.ResourceVersion = version
	for i, c := range list {
		d := metav1.TableColumnDefinition{Name: c.Name, Type: "string"}
		if i == 0 && k.Name != "Event" {
			d.Format = "name"
		}
		if c.Name == "Data" {
			d.Type = "integer"
		}
		if c.Wide {
			d.Priority = 1
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, d)
	}
	now := time.Now()
	for _, o := range objects {
		row := metav1.TableRow{}
		for _, c := range list {
			row.Cells = append(row.Cells, c.Cell(o, now))
		}
		row.Object = included(w.r.URL.Query().Get("includeObject"), o)
		t.Rows = append(t.Rows, row)
	}
	return t
}

func included(what string, o manifest.Object) runtime.RawExtension {
	var v any = o
	switch metav1.IncludeObjectPolicy(what) {
	case metav1.IncludeNone:
		return runtime.RawExtension{}
	case metav1.IncludeObject:
	default:
		m := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}}
		m.Name, m.Namespace, m.UID, m.ResourceVersion, m.Labels = o.GetName(), o.GetNamespace(), o.GetUID(), o.GetResourceVersion(), o.GetLabels()
		m.CreationTimestamp, m.DeletionTimestamp, m.Annotations, m.Generation = o.GetCreationTimestamp(), o.GetDeletionTimestamp(), o.GetAnnotations(), o.GetGeneration()
		v = m
	}
	data, err := json.Marshal(v)
	if err != nil {
		return runtime.RawExtension{}
	}
	return runtime.RawExtension{Raw: data}
}
