package kubectl

import (
	"cmp"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/api"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/status"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// A column is one of kubectl's tables. Wide ones are shown by -o wide.
type column struct {
	name string
	wide bool
	cell func(o manifest.Object, now time.Time) any
}

// of makes a cell of a kind's own type.
func of[T manifest.Object](f func(T) any) func(manifest.Object, time.Time) any {
	return func(o manifest.Object, _ time.Time) any {
		if t, ok := o.(T); ok {
			return f(t)
		}
		return ""
	}
}

func age(o manifest.Object, now time.Time) any { return since(o.GetCreationTimestamp(), now) }

func since(at metav1.Time, now time.Time) string {
	if at.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(at.Time))
}

// columns are those of each kind, as far as they differ from NAME and AGE, with
// kubectl's names and in its order.
var columns = map[string][]column{
	"Pod": {
		{"Ready", false, of(func(p *v1.Pod) any {
			ready, all := status.Count(p)
			return fmt.Sprintf("%d/%d", ready, all)
		})},
		{"Status", false, of(func(p *v1.Pod) any { return status.Word(p) })},
		{"Restarts", false, func(o manifest.Object, now time.Time) any { return status.Restarts(o.(*v1.Pod), now) }},
		{"Age", false, age},
		{"IP", true, of(func(p *v1.Pod) any { return cmp.Or(p.Status.PodIP, "<none>") })},
		{"Node", true, of(func(p *v1.Pod) any { return cmp.Or(p.Spec.NodeName, "<none>") })},
		{"Source", true, of(func(p *v1.Pod) any { return cmp.Or(p.Annotations[manifest.AnnotationSource], "<none>") })},
	},
	"ConfigMap": {{"Data", false, of(func(c *v1.ConfigMap) any { return len(c.Data) + len(c.BinaryData) })}, {"Age", false, age}},
	"Secret": {
		{"Type", false, of(func(s *v1.Secret) any { return string(s.Type) })},
		{"Data", false, of(func(s *v1.Secret) any { return len(s.Data) })}, {"Age", false, age},
	},
	"PersistentVolumeClaim": {
		{"Status", false, of(func(c *v1.PersistentVolumeClaim) any { return cmp.Or(string(c.Status.Phase), string(v1.ClaimBound)) })}, {"Age", false, age},
	},
	"Namespace": {{"Status", false, of(func(n *v1.Namespace) any { return string(n.Status.Phase) })}, {"Age", false, age}},
	"Node": {
		{"Status", false, of(func(n *v1.Node) any { return status.NodeWord(n) })}, {"Age", false, age},
		{"Version", false, of(func(n *v1.Node) any { return n.Status.NodeInfo.KubeletVersion })},
		{"Internal-IP", true, of(func(n *v1.Node) any {
			for _, a := range n.Status.Addresses {
				if a.Type == v1.NodeInternalIP {
					return a.Address
				}
			}
			return "<none>"
		})},
		{"OS-Image", true, of(func(n *v1.Node) any { return n.Status.NodeInfo.OSImage })},
		{"Kernel-Version", true, of(func(n *v1.Node) any { return n.Status.NodeInfo.KernelVersion })},
		{"Container-Runtime", true, of(func(n *v1.Node) any { return n.Status.NodeInfo.ContainerRuntimeVersion })},
	},
	"RuntimeClass": {{"Handler", false, of(func(c *nodev1.RuntimeClass) any { return c.Handler })}, {"Age", false, age}},
	"Deployment": {
		{"Ready", false, of(func(d *appsv1.Deployment) any { return fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, replicas(d)) })},
		{"Up-to-date", false, of(func(d *appsv1.Deployment) any { return d.Status.UpdatedReplicas })},
		{"Available", false, of(func(d *appsv1.Deployment) any { return d.Status.AvailableReplicas })}, {"Age", false, age},
	},
	"DaemonSet": {
		{"Desired", false, of(func(d *appsv1.DaemonSet) any { return d.Status.DesiredNumberScheduled })},
		{"Current", false, of(func(d *appsv1.DaemonSet) any { return d.Status.CurrentNumberScheduled })},
		{"Ready", false, of(func(d *appsv1.DaemonSet) any { return d.Status.NumberReady })},
		{"Up-to-date", false, of(func(d *appsv1.DaemonSet) any { return d.Status.UpdatedNumberScheduled })},
		{"Available", false, of(func(d *appsv1.DaemonSet) any { return d.Status.NumberAvailable })}, {"Age", false, age},
	},
	"Job": {
		{"Status", false, of(func(j *batchv1.Job) any {
			for _, c := range j.Status.Conditions {
				if c.Status == v1.ConditionTrue {
					return string(c.Type)
				}
			}
			return "Running"
		})},
		{"Completions", false, of(func(j *batchv1.Job) any {
			if j.Spec.Completions == nil {
				return fmt.Sprintf("%d/1", j.Status.Succeeded)
			}
			return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
		})},
		{"Age", false, age},
	},
	"Event": {
		{"Last Seen", false, func(o manifest.Object, now time.Time) any {
			e, ok := o.(*v1.Event)
			if !ok {
				return ""
			}
			return since(e.LastTimestamp, now)
		}},
		{"Type", false, of(func(e *v1.Event) any { return e.Type })},
		{"Reason", false, of(func(e *v1.Event) any { return e.Reason })},
		{"Object", false, of(func(e *v1.Event) any {
			return strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name
		})},
		{"Subobject", true, of(func(e *v1.Event) any { return e.InvolvedObject.FieldPath })},
		{"Message", false, of(func(e *v1.Event) any { return strings.TrimSpace(e.Message) })},
		{"Count", true, of(func(e *v1.Event) any { return e.Count })},
		{"Name", true, func(o manifest.Object, _ time.Time) any { return o.GetName() }},
	},
}

func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// wantsTable reports whether a client asks for a table before anything else that
// there is: kubectl get without -o json or yaml does.
func wantsTable(r *http.Request) bool {
	for accept := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		kind, o, err := mime.ParseMediaType(strings.TrimSpace(accept))
		if err != nil || kind != "application/json" && kind != "*/*" && kind != "application/*" {
			continue // protobuf and its like
		}
		return o["as"] == "Table" && o["g"] == "meta.k8s.io" && o["v"] == "v1"
	}
	return false
}

// tables is a ResponseWriter of tables: an api.Representer.
type tables struct {
	http.ResponseWriter
	r *http.Request
}

// Unwrap is for http.ResponseController.
func (t *tables) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Represent makes a table of objects.
func (t *tables) Represent(k api.Kind, objects []manifest.Object, version string) any {
	return table(t.r, k, objects, version)
}

// table makes a table of objects of one kind. Each row has its object, or as much of
// it as includeObject asks for; by default its metadata.
func table(r *http.Request, k api.Kind, objects []manifest.Object, version string) *metav1.Table {
	list, own := columns[k.Name], []column{{"Name", false, func(o manifest.Object, _ time.Time) any { return o.GetName() }}}
	if k.Name != "Event" {
		list = append(own, list...)
	}
	t := &metav1.Table{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"}, Rows: []metav1.TableRow{}}
	t.ResourceVersion = version
	for i, c := range list {
		d := metav1.TableColumnDefinition{Name: c.name, Type: "string"}
		if i == 0 && k.Name != "Event" {
			d.Format = "name"
		}
		if c.name == "Data" {
			d.Type = "integer"
		}
		if c.wide {
			d.Priority = 1
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, d)
	}
	now := time.Now()
	for _, o := range objects {
		row := metav1.TableRow{}
		for _, c := range list {
			row.Cells = append(row.Cells, c.cell(o, now))
		}
		row.Object = included(r.URL.Query().Get("includeObject"), k, o)
		t.Rows = append(t.Rows, row)
	}
	return t
}

func included(what string, k api.Kind, o manifest.Object) runtime.RawExtension {
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
