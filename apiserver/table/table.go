// Package table has the columns of objects that "crisp get" and "kubectl get" print, and words for what is in cells.
package table

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/status"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
)

// A Column is a column of a kind's table.
type Column struct {
	Name string // in kubectl's spelling; it is printed in capitals
	Wide bool   // shown only with -o wide
	cell func(o manifest.Object, now time.Time) any
}

// Cell returns the cell of an object at the time now: a string or a number.
func (c Column) Cell(o manifest.Object, now time.Time) any { return c.cell(o, now) }

var name = Column{"Name", false, func(o manifest.Object, _ time.Time) any { return o.GetName() }}

// source is the column with the file or the source that an object comes from.
var source = Column{"Source", true, func(o manifest.Object, _ time.Time) any {
	a := o.GetAnnotations()
	return cmp.Or(a[manifest.AnnotationFile], a[manifest.AnnotationSource], "<none>")
}}

// Columns returns the columns of a kind. Those of events do not start with the name.
func Columns(kind string) []Column {
	list := columns[kind]
	switch kind {
	case "Event":
		return list
	case "Pod", "Node", "Namespace":
		return slices.Concat([]Column{name}, list)
	}
	return slices.Concat([]Column{name}, list, []Column{source})
}

// types has an empty object of each kind that has columns.
var types = map[string]manifest.Object{
	"Pod": &v1.Pod{}, "ConfigMap": &v1.ConfigMap{}, "Secret": &v1.Secret{}, "PersistentVolumeClaim": &v1.PersistentVolumeClaim{}, "Service": &v1.Service{},
	"Namespace": &v1.Namespace{}, "Node": &v1.Node{}, "Event": &v1.Event{}, "RuntimeClass": &nodev1.RuntimeClass{},
	"Deployment": &appsv1.Deployment{}, "StatefulSet": &appsv1.StatefulSet{}, "DaemonSet": &appsv1.DaemonSet{}, "CronJob": &batchv1.CronJob{}, "Job": &batchv1.Job{},
}

// New returns an empty object of a kind with columns, nil for another kind.
func New(kind string) manifest.Object {
	if o := types[kind]; o != nil {
		return o.DeepCopyObject().(manifest.Object)
	}
	return nil
}

// of adapts a function for one kind's type to Column.cell. The cell of another object is "".
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

// columns are the columns of each kind, with kubectl's names and in its order, without those
// that Columns adds: the name and the source.
var columns = map[string][]Column{
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
		{"Last Exit", true, of(func(p *v1.Pod) any {
			for _, c := range p.Status.ContainerStatuses {
				if t := c.LastTerminationState.Terminated; t != nil {
					return fmt.Sprintf("%d (%s)", t.ExitCode, t.Reason)
				}
			}
			return "<none>"
		})},
		{"Source", true, of(func(p *v1.Pod) any {
			return cmp.Or(p.Labels[podspec.LabelSource], p.Annotations[manifest.AnnotationSource], "<none>")
		})},
		{"Images", true, of(func(p *v1.Pod) any {
			var list []string
			for _, c := range p.Spec.Containers {
				list = append(list, c.Image)
			}
			return cmp.Or(strings.Join(list, ","), "<none>")
		})},
	},
	"ConfigMap": {{"Data", false, of(func(c *v1.ConfigMap) any { return len(c.Data) + len(c.BinaryData) })}, {"Age", false, age}},
	"Secret": {
		{"Type", false, of(func(s *v1.Secret) any { return string(s.Type) })},
		{"Data", false, of(func(s *v1.Secret) any { return len(s.Data) })}, {"Age", false, age},
	},
	"PersistentVolumeClaim": {
		{"Status", false, of(func(c *v1.PersistentVolumeClaim) any { return cmp.Or(string(c.Status.Phase), string(v1.ClaimBound)) })}, {"Age", false, age},
	},
	"Service": {
		{"Type", false, of(func(s *v1.Service) any { return string(s.Spec.Type) })},
		{"Selector", false, of(func(s *v1.Service) any { return labels.FormatLabels(s.Spec.Selector) })}, {"Age", false, age},
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
		{"Ready", false, of(func(d *appsv1.Deployment) any {
			return fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 1))
		})},
		{"Up-to-date", false, of(func(d *appsv1.Deployment) any { return d.Status.UpdatedReplicas })},
		{"Available", false, of(func(d *appsv1.Deployment) any { return d.Status.AvailableReplicas })}, {"Age", false, age},
	},
	"StatefulSet": {
		{"Ready", false, of(func(s *appsv1.StatefulSet) any {
			return fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, ptr.Deref(s.Spec.Replicas, 1))
		})}, {"Age", false, age},
	},
	"DaemonSet": {
		{"Desired", false, of(func(d *appsv1.DaemonSet) any { return d.Status.DesiredNumberScheduled })},
		{"Current", false, of(func(d *appsv1.DaemonSet) any { return d.Status.CurrentNumberScheduled })},
		{"Ready", false, of(func(d *appsv1.DaemonSet) any { return d.Status.NumberReady })},
		{"Up-to-date", false, of(func(d *appsv1.DaemonSet) any { return d.Status.UpdatedNumberScheduled })},
		{"Available", false, of(func(d *appsv1.DaemonSet) any { return d.Status.NumberAvailable })}, {"Age", false, age},
	},
	"CronJob": {
		{"Schedule", false, of(func(c *batchv1.CronJob) any { return c.Spec.Schedule })},
		{"Timezone", false, of(func(c *batchv1.CronJob) any { return ptr.Deref(c.Spec.TimeZone, "<none>") })},
		{"Suspend", false, of(func(c *batchv1.CronJob) any { return strconv.FormatBool(ptr.Deref(c.Spec.Suspend, false)) })},
		{"Active", false, of(func(c *batchv1.CronJob) any { return len(c.Status.Active) })},
		{"Last Schedule", false, func(o manifest.Object, now time.Time) any {
			return since(ptr.Deref(o.(*batchv1.CronJob).Status.LastScheduleTime, metav1.Time{}), now)
		}}, {"Age", false, age},
	},
	"Job": {
		{"Status", false, of(func(j *batchv1.Job) any {
			for _, c := range slices.Backward(j.Status.Conditions) { // Failed comes after FailureTarget
				if c.Status == v1.ConditionTrue {
					return string(c.Type)
				}
			}
			return "Running"
		})},
		{"Completions", false, of(func(j *batchv1.Job) any {
			return fmt.Sprintf("%d/%d", j.Status.Succeeded, ptr.Deref(j.Spec.Completions, 1))
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

// Resources returns limits and requests in words: "cpu limit 1, memory request 64Mi".
func Resources(r v1.ResourceRequirements) string {
	var words []string
	for _, of := range []struct {
		word string
		list v1.ResourceList
	}{{"limit", r.Limits}, {"request", r.Requests}} {
		for _, name := range slices.Sorted(maps.Keys(of.list)) {
			q := of.list[name]
			words = append(words, fmt.Sprintf("%s %s %s", name, of.word, q.String()))
		}
	}
	return strings.Join(words, ", ")
}
