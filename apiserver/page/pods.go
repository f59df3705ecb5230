package page

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/apiserver/why"
	"github.com/crisp-cri/crisp/internal/pulls"
)

// podList is the data of the page of all pods.
type podList struct {
	Node     string
	Version  string
	Facts    []fact   // of the node
	Problems []string // of the node and its manifests
	Pods     []podRow
	Pulls    []pullRow
}

// A podRow is a row of the list of pods.
type podRow struct {
	Namespace, Name string
	Word, Class     string // kubectl's STATUS, and its CSS class
	Ready, All      int
	Restarts, Age   string
	CPU, Memory     string // "" means unknown
	Address         string
	Pull            *pullRow
	Trouble         string // why it is not ready
}

// A pullRow is a running pull.
type pullRow struct {
	Image, Text string
	Known       bool // the total is known, and so is Percent
	Percent     int
	Layers      []layerRow
}

type layerRow struct {
	Digest, State string
	Percent       int
}

func (s *Server) pods(w http.ResponseWriter, r *http.Request) error {
	var list v1.PodList
	var nodes v1.NodeList
	var events v1.EventList
	var reports struct{ Items []startup.Report }
	for path, to := range map[string]any{"/pods": &list, "/api/v1/nodes": &nodes, "/crisp/v1/startup": &reports, "/api/v1/events": &events} {
		if err := s.ask(r.Context(), path, to); err != nil {
			return err
		}
	}
	var body podList
	node := &v1.Node{}
	if len(nodes.Items) > 0 {
		node = &nodes.Items[0]
	}
	body.Node, body.Version = node.Name, node.Status.NodeInfo.KubeletVersion
	started := map[string]startup.Report{}
	for _, rep := range reports.Items {
		started[rep.Pod.UID] = rep
	}
	under := s.o.Pulls.List(r.Context())
	for i := range under {
		if under[i].Ended.IsZero() {
			body.Pulls = append(body.Pulls, pullOf(under[i]))
		}
	}
	now, used := time.Now(), sample{}
	for i := range list.Items {
		pod := &list.Items[i]
		row := s.row(pod, under, now)
		if now := s.samples.last(string(pod.UID)); now != nil {
			used.cpu, used.memory = used.cpu+now.cpu, used.memory+now.memory
		}
		facts := s.facts(r.Context(), pod, events.Items, under)
		facts.Stages = started[string(pod.UID)].Stages
		row.Trouble = why.Trouble(facts, now)
		body.Pods = append(body.Pods, row)
	}
	slices.SortFunc(body.Pods, func(a, b podRow) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	body.Facts, body.Problems = s.nodeFacts(r.Context(), node, body.Pods, used), s.problems(r.Context(), node)
	s.show(w, r, http.StatusOK, "pods", view{Title: "Pods", Body: body})
	return nil
}

// rank orders pods for people: what is bad comes first.
func rank(row podRow) int {
	if row.Class == "bad" {
		return 0
	}
	return 1
}

// facts returns what is known of a pod beside its start.
func (s *Server) facts(ctx context.Context, pod *v1.Pod, events []v1.Event, under []pulls.Pull) why.Facts {
	f := why.Facts{Pod: pod, Logs: lastLines{s, ctx, pod}}
	for i := range events {
		if events[i].InvolvedObject.UID == pod.UID {
			f.Events = append(f.Events, events[i])
		}
	}
	if p, ok := pulls.Of(under, pod.Namespace+"/"+pod.Name); ok {
		f.Pull = &p
	}
	return f
}

// lastLines are the ends of the logs of a pod, for a request.
type lastLines struct {
	s   *Server
	ctx context.Context
	pod *v1.Pod
}

// LastLine implements why.Logs.
func (l lastLines) LastLine(container string) string {
	status := podsync.StatusOf(container, slices.Concat(l.pod.Status.InitContainerStatuses, l.pod.Status.ContainerStatuses))
	q := url.Values{"container": {container}, "tailLines": {"1"}, "previous": {fmt.Sprint(status != nil && status.State.Terminated == nil)}}
	text, _ := l.s.read(l.ctx, "/api/v1/namespaces/"+url.PathEscape(l.pod.Namespace)+"/pods/"+url.PathEscape(l.pod.Name)+"/log?"+q.Encode())
	return string(text) // nothing, if it has no log any more
}

// row returns what both the list and the pod's page show. under has the running pulls.
func (s *Server) row(pod *v1.Pod, under []pulls.Pull, now time.Time) podRow {
	row := podRow{Namespace: pod.Namespace, Name: pod.Name, Word: status.Word(pod), Restarts: status.Restarts(pod, now), Age: age(pod.CreationTimestamp.Time, now)}
	row.Ready, row.All = status.Count(pod)
	row.Class = look(pod, row)
	row.Address = pod.Status.PodIP
	if p, ok := pulls.Of(under, pod.Namespace+"/"+pod.Name); ok && pod.Status.Phase != v1.PodRunning {
		pull := pullOf(p)
		row.Pull = &pull
	}
	if last := s.samples.last(string(pod.UID)); last != nil {
		row.CPU, row.Memory = cores(last.cpu), memory(last.memory)
	}
	return row
}

// trouble matches a STATUS, or the reason of a container that waits, which means a problem.
var trouble = regexp.MustCompile("BackOff|Err|OOM|Invalid")

// look returns the CSS class of a pod's state.
func look(pod *v1.Pod, row podRow) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "wait"
	case pod.Status.Phase == v1.PodSucceeded:
		return "done"
	case pod.Status.Phase == v1.PodFailed, trouble.MatchString(row.Word):
		return "bad"
	case pod.Status.Phase == v1.PodRunning && row.Ready == row.All:
		return "ok"
	}
	return "wait"
}

func age(at, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	return duration.HumanDuration(now.Sub(at))
}

func pullOf(p pulls.Pull) pullRow {
	f, known := p.Fraction()
	row := pullRow{Image: p.Image, Text: strings.TrimSpace(p.String() + " " + p.Source()), Known: known, Percent: int(100 * f)}
	for _, l := range p.Layers {
		percent := 0
		switch {
		case l.State == pulls.Here || l.State == pulls.Done || l.State == pulls.Unpacking:
			percent = 100
		case l.Size > 0:
			percent = int(min(max(100*l.Bytes/l.Size, 0), 100))
		}
		_, hex, _ := strings.Cut(l.Digest, ":")
		row.Layers = append(row.Layers, layerRow{Digest: hex[:min(len(hex), 12)], State: l.State, Percent: percent})
	}
	return row
}
