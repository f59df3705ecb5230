package kubectl

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// usageGroup is the API group that kubectl top queries.
const usageGroup = metrics.GroupName + "/v1beta1"

// between is the time between two samples, from which rates are computed if the runtime does not
// report them. It is also the window in each answer.
const between = 500 * time.Millisecond

func (h *Handler) routeUsage() {
	const path = "/apis/" + usageGroup
	pods := func(w http.ResponseWriter, r *http.Request) error {
		sel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
		if err != nil {
			return fault.Invalid.Errorf("labelSelector: %v", err)
		}
		all, err := h.podUsage(r.Context())
		if err != nil {
			return err
		}
		namespace, name := r.PathValue("namespace"), r.PathValue("name")
		all = slices.DeleteFunc(all, func(p metrics.PodMetrics) bool {
			return namespace != "" && p.Namespace != namespace || name != "" && p.Name != name || !sel.Matches(labels.Set(p.Labels))
		})
		if name == "" {
			return api.Write(w, http.StatusOK, metrics.PodMetricsList{TypeMeta: usageType("PodMetricsList"), Items: all})
		}
		if len(all) == 0 {
			return fault.NotFound.Errorf("nothing is known of what pod %s/%s uses", namespace, name)
		}
		return api.Write(w, http.StatusOK, all[0])
	}
	h.handle("GET "+path+"/pods", pods)
	h.handle("GET "+path+"/namespaces/{namespace}/pods", pods)
	h.handle("GET "+path+"/namespaces/{namespace}/pods/{name}", pods)
	h.handle("GET "+path+"/nodes", func(w http.ResponseWriter, r *http.Request) error {
		n, err := h.nodeUsage(r.Context())
		if err != nil {
			return err
		}
		return api.Write(w, http.StatusOK, metrics.NodeMetricsList{TypeMeta: usageType("NodeMetricsList"), Items: []metrics.NodeMetrics{n}})
	})
	h.handle("GET "+path+"/nodes/{name}", func(w http.ResponseWriter, r *http.Request) error {
		if name := r.PathValue("name"); name != h.server.NodeStats().NodeName {
			return fault.NotFound.Errorf("there is no node %s", name)
		}
		n, err := h.nodeUsage(r.Context())
		if err != nil {
			return err
		}
		return api.Write(w, http.StatusOK, n)
	})
}

func usageType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: usageGroup, Kind: kind}
}

// podUsage returns the usage of this agent's pods.
func (h *Handler) podUsage(ctx context.Context) ([]metrics.PodMetrics, error) {
	runtime, _, err := h.server.Runtime()
	if err != nil {
		return nil, err
	}
	first, err := criruntime.PodStats(ctx, runtime)
	if err != nil {
		return nil, err
	}
	if !periodic.Pause(ctx, between) {
		return nil, ctx.Err()
	}
	second, err := criruntime.PodStats(ctx, runtime)
	if err != nil {
		return nil, err
	}
	rates := criruntime.Rates(first, second)
	list := []metrics.PodMetrics{}
	for _, sb := range second {
		m := sb.GetAttributes().GetMetadata()
		p := metrics.PodMetrics{TypeMeta: usageType("PodMetrics"), Timestamp: metav1.Now(), Window: metav1.Duration{Duration: between}}
		p.Name, p.Namespace, p.Labels = m.GetName(), m.GetNamespace(), sb.GetAttributes().GetLabels()
		for _, c := range sb.GetLinux().GetContainers() {
			p.Containers = append(p.Containers, metrics.ContainerMetrics{Name: c.GetAttributes().GetMetadata().GetName(), Usage: amountsUsed(
				rates[c.GetAttributes().GetId()], c.GetMemory().GetWorkingSetBytes().GetValue())})
		}
		list = append(list, p)
	}
	return list, nil
}

func amountsUsed(nanocores, bytes uint64) v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewScaledQuantity(int64(nanocores), resource.Nano),
		v1.ResourceMemory: *resource.NewQuantity(int64(bytes), resource.BinarySI),
	}
}

func (h *Handler) nodeUsage(ctx context.Context) (metrics.NodeMetrics, error) {
	first := h.server.NodeStats()
	if !periodic.Pause(ctx, between) {
		return metrics.NodeMetrics{}, ctx.Err()
	}
	second := h.server.NodeStats()
	n := metrics.NodeMetrics{TypeMeta: usageType("NodeMetrics"), Timestamp: metav1.Now(), Window: metav1.Duration{Duration: between}}
	n.Name = second.NodeName
	var cores, memory uint64
	if a, b := first.CPU, second.CPU; a != nil && b != nil && a.UsageCoreNanoSeconds != nil && b.UsageCoreNanoSeconds != nil {
		cores = uint64(float64(*b.UsageCoreNanoSeconds-*a.UsageCoreNanoSeconds) / b.Time.Sub(a.Time.Time).Seconds())
	}
	if m := second.Memory; m != nil && m.WorkingSetBytes != nil {
		memory = *m.WorkingSetBytes
	}
	n.Usage = amountsUsed(cores, memory)
	return n, nil
}
