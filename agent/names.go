package agent

import (
	"context"
	"time"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/internal/poke"
	v1 "k8s.io/api/core/v1"
)

// gather is how long the names of pods stay as they are, so that many changes are one: each
// rewrites a file of every pod.
const gather = 500 * time.Millisecond

// keepNames gives pods the names of each other, of Services and of the node, by /etc/hosts, until ctx
// ends.
func (a *Agent) keepNames(ctx context.Context) {
	var last *podspec.Names
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.renamed:
		}
		if !a.Wanted.Local() { // pods keep the names that an earlier agent gave them
			continue
		}
		if now := a.names(); last == nil || !now.Equal(last) {
			last = now
			if err := a.Files.Rename(now); err != nil { // the disk is full: again with the next change
				a.o.Log.WarnContext(ctx, "names of pods not up to date", "err", err)
				last = nil
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(gather):
		}
	}
}

// names are those that pods have now.
func (a *Agent) names() *podspec.Names {
	var pods []podspec.NamedPod
	for _, pod := range a.Wanted.Pods() {
		pods = append(pods, podspec.NamedPod{Pod: pod, Status: a.Statuses.Last(pod)})
	}
	var services []*v1.Service
	for _, o := range a.Wanted.List("Service") {
		if s, ok := o.(*v1.Service); ok {
			services = append(services, s)
		}
	}
	return podspec.NamesOf(pods, services, a.host.IPs(), a.o.ClusterDomain)
}

// rename has the names made again: a pod, a Service or the node's address has changed.
func (a *Agent) rename() { poke.Wake(a.renamed) }
