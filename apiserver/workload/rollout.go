package workload

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/internal/timeline"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

// A rollout replaces the pods of one template by those of the next. It follows the rules of
// Kubernetes' Deployment controller: there are at most replicas+surge pods, and at least
// replicas-unavailable of them stay available. Old pods that are not available go first. The
// controller takes one step and then observes its outcome; a plan takes all steps that the current
// state of the pods allows.
//
// A pod that has ended, because it was evicted or rejected, is replaced after replaceAfter, under
// another name: with the same name it would have the same UID.
type rollout struct {
	owner       manifest.Object
	template    *v1.PodTemplateSpec
	label       string // key of the label with the revision
	replicas    int
	surge       int
	unavailable int
	inPlace     bool          // all old pods end at once, and new ones get their names
	paused      bool          // see planPaused
	minReady    time.Duration // how long a pod must be ready to be available

	updated, ready, available int32 // counted by plan

	members []member // the wanted pods
	ended   []int    // indexes of ended pods, which new pods must not get
}

// replaceAfter is how long an ended pod stays, so that it can be inspected; the node may reject its
// successor too.
const replaceAfter = 10 * time.Second

// A member is a wanted pod of a rollout.
type member struct {
	*v1.Pod
	index            int  // the number in its name
	current          bool // it has the current template
	ready, available bool
}

func isOld(m member) bool          { return !m.current }
func isCurrent(m member) bool      { return m.current }
func isReady(m member) bool        { return m.ready }
func isAvailable(m member) bool    { return m.available }
func isOldAndAway(m member) bool   { return !m.current && !m.available }
func isCurrentAndUp(m member) bool { return m.current && m.available }

func (r *rollout) plan(pods []source.WorkloadPod, now time.Time) source.Plan {
	var plan source.Plan
	var over []*v1.Pod // ended pods, whose indexes are r.ended
	for _, p := range pods {
		m, ok := r.member(p)
		if !ok {
			continue
		}
		if phase := p.Status.Phase; phase == v1.PodFailed || phase == v1.PodSucceeded {
			at := podsync.After(overSince(p.Status), replaceAfter, now)
			if !at.After(now) {
				r.ended, over = append(r.ended, m.index), append(over, p.Pod)
				continue
			}
			plan.Again = podsync.Earliest(plan.Again, at)
		}
		at, ready := availableAt(p.Status, r.minReady, now)
		m.ready, m.available = ready, ready && !at.After(now)
		if ready && !m.available {
			plan.Again = podsync.Earliest(plan.Again, at)
		}
		r.members = append(r.members, m)
	}
	slices.SortFunc(r.members, func(a, b member) int { return cmp.Compare(a.index, b.index) })
	if r.paused {
		r.planPaused(over)
	} else {
		r.update()
	}
	slices.SortFunc(r.members, func(a, b member) int { return cmp.Compare(a.index, b.index) })
	for _, m := range r.members {
		plan.Pods = append(plan.Pods, m.Pod)
	}
	r.updated, r.ready, r.available = int32(r.count(isCurrent)), int32(r.count(isReady)), int32(r.count(isAvailable))
	return plan
}

// update takes all steps that the current state of the pods allows.
func (r *rollout) update() {
	var free []int // indexes that new pods get first
	if r.inPlace {
		for _, m := range r.members {
			if isOld(m) {
				free = append(free, m.index)
			}
		}
		r.members = slices.DeleteFunc(r.members, isOld)
	}
	for r.step(free) {
	}
}

// member converts a pod to a member; ok is false if its name has no index. A current pod is made
// again, since its annotations depend on the owner and not only on the template.
func (r *rollout) member(p source.WorkloadPod) (member, bool) {
	index, err := strconv.Atoi(strings.TrimPrefix(p.Name, r.owner.GetName()+"-"))
	if err != nil || index < 0 {
		return member{}, false
	}
	if next := r.newPod(index); next.UID == p.UID {
		return member{Pod: next, index: index, current: true}, true
	}
	return member{Pod: p.Pod, index: index}, true
}

// overSince returns when a pod ended: the latest time in its status, since a rejected pod has no
// containers.
func overSince(s v1.PodStatus) time.Time {
	over := endOf(s)
	if s.StartTime != nil {
		over = timeline.Later(over, s.StartTime.Time)
	}
	for _, c := range s.Conditions {
		over = timeline.Later(over, c.LastTransitionTime.Time)
	}
	return over
}

func (r *rollout) newPod(index int) *v1.Pod {
	pod := makePod(r.owner, r.template, r.owner.GetName()+"-"+strconv.Itoa(index), r.template.Annotations[manifest.AnnotationHash], map[string]string{r.label: revisionLabel(r.template)})
	if s, ok := r.owner.(*appsv1.StatefulSet); ok {
		identify(pod, s, index)
	}
	return pod
}

func (r *rollout) count(is func(member) bool) int {
	n := 0
	for _, m := range r.members {
		if is(m) {
			n++
		}
	}
	return n
}

// step adds or drops as many pods as the limits allow. It reports whether it changed anything.
func (r *rollout) step(free []int) bool {
	current, total := r.count(isCurrent), len(r.members)
	if surplus := current - r.replicas; surplus > 0 {
		slices.Reverse(r.members) // the highest indexes go first
		r.drop(surplus, isCurrent)
		slices.Reverse(r.members)
		return true
	}
	most := r.replicas + r.surge
	if missing := min(most-total, r.replicas-current); missing > 0 {
		r.add(missing, free)
		return true
	}
	least := r.replicas - r.unavailable
	spare := total - least - (current - r.count(isCurrentAndUp))
	if spare <= 0 || current == total {
		return false
	}
	gone := r.drop(spare, isOldAndAway)
	return gone+r.drop(r.count(isAvailable)-least, isOld) > 0
}

// drop removes up to n members that satisfy is, unavailable ones first, and returns the number of
// removed members.
func (r *rollout) drop(n int, is func(member) bool) (gone int) {
	for _, up := range []bool{false, true} {
		r.members = slices.DeleteFunc(r.members, func(m member) bool {
			if gone >= n || !is(m) || m.available != up {
				return false
			}
			gone++
			return true
		})
	}
	return gone
}

// add adds n pods with the first indexes that are not taken: from free first, then from 0 on.
func (r *rollout) add(n int, free []int) {
	for _, index := range r.indexes(n, free) {
		r.members = append(r.members, member{Pod: r.newPod(index), index: index, current: true})
	}
}

// indexes returns the first n indexes that are not taken: from free first, then from 0 on.
func (r *rollout) indexes(n int, free []int) []int {
	taken := make(map[int]bool, len(r.members)+len(r.ended)+n)
	for _, m := range r.members {
		taken[m.index] = true
	}
	for _, i := range r.ended {
		taken[i] = true
	}
	return firstFree(n, free, func(i int) bool { return taken[i] })
}

// firstFree returns the first n numbers that are not taken: from prefer first, then from 0 on. It
// calls taken once for each number, except for those in prefer.
func firstFree(n int, prefer []int, taken func(int) bool) []int {
	var free []int
	chosen := map[int]bool{}
	for _, i := range prefer {
		if len(free) < n && !chosen[i] && !taken(i) {
			free, chosen[i] = append(free, i), true
		}
	}
	for i := 0; len(free) < n; i++ {
		if !chosen[i] && !taken(i) {
			free = append(free, i)
		}
	}
	return free
}
