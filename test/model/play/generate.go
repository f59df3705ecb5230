package play

import (
	"math/rand/v2"
	"time"

	"github.com/crisp-cri/crisp/test/model"
)

// Options bound the generated scripts.
type Options struct {
	Rounds, Clients, Steps int      // maxima; Steps is for one client in one round
	Pods, Containers       int      // names of pods, and of containers in each
	Images                 []string // names of images, besides the one that always exists
	Acts                   []string
	Unit                   time.Duration // of delays, and of clients' timeouts
	Grace                  int           // maximum, in seconds
}

// Fake is for a node with a fake clock, Real for one where waiting costs time, and Peer for another
// runtime, without faults.
var (
	Fake = Options{Rounds: 5, Clients: 4, Steps: 5, Pods: 2, Containers: 2, Images: images, Acts: []string{Crash, Crash, Crash, Both, Executor, Restart, Fail, Fail}, Unit: time.Millisecond, Grace: 30}
	Real = Options{Rounds: 4, Clients: 3, Steps: 4, Pods: 2, Containers: 2, Acts: []string{Crash, Crash, Both, Executor, Restart}, Unit: 5 * time.Millisecond, Grace: 1}
	Peer = Options{Rounds: 4, Clients: 3, Steps: 4, Pods: 2, Containers: 2, Images: images, Unit: 10 * time.Millisecond, Grace: 1}
)

// images are the names of images that scripts may pull, use and remove.
var images = []string{"spare"}

// A generator remembers what the previous steps have probably made, so that most of the later ones
// make sense.
type generator struct {
	*rand.Rand
	o     Options
	phase map[string]int // of pods and pod/containers: stage of their lives
}

// Generate returns the script of a seed.
func Generate(seed uint64, o Options) Script {
	g := &generator{rand.New(rand.NewPCG(seed, 0x6372697370)), o, make(map[string]int)}
	s := Script{Latency: g.Uint64N(1 << 32)}
	for range 1 + g.IntN(o.Rounds) {
		s.Rounds = append(s.Rounds, g.round(len(s.Rounds) == 0))
	}
	return s
}

func (g *generator) round(first bool) Round {
	var r Round
	for c := range 1 + g.IntN(g.o.Clients) {
		n := 1 + g.IntN(g.o.Steps)
		if first {
			n++
		}
		for range n {
			step := Step{Client: string(rune('a' + c)), Delay: g.delay(), Call: g.call(), Old: g.IntN(20) == 0}
			if g.IntN(12) == 0 {
				step.Call.Patience = (1 + g.IntN(30)) * int(g.o.Unit/time.Millisecond)
			}
			r = append(r, step)
		}
	}
	if g.IntN(100) < 60 && len(g.o.Acts) > 0 {
		act := Step{Client: Nemesis, Delay: g.delay(), Act: g.o.Acts[g.IntN(len(g.o.Acts))]}
		if act.Act == Crash || act.Act == Both || act.Act == Fail {
			act.Step, act.After = 1+g.IntN(20), g.IntN(2) == 0
		}
		r = append(r, act)
	}
	return r
}

// delay is usually zero or short, so that calls overlap.
func (g *generator) delay() time.Duration {
	of := []int{0, 0, 0, 0, 1, 1, 2, 5, 10, 40}
	return time.Duration(of[g.IntN(len(of))]) * g.o.Unit
}

func (g *generator) call() model.Call {
	if g.IntN(100) < 10 && len(g.o.Images) > 0 {
		return g.imageCall()
	}
	pod := string(rune('p' + g.IntN(g.o.Pods)))
	container := string(rune('c' + g.IntN(g.o.Containers)))
	full := pod + "/" + container
	c := model.Call{Pod: pod}
	sensible := g.IntN(100) < 75
	switch {
	case sensible && g.phase[pod] == 0:
		c.Verb = model.RunPod
	case g.IntN(100) < 25:
		c.Verb = pick(g, model.RunPod, model.StopPod, model.StopPod, model.RemovePod, model.PodStatus, model.ListPods)
	case sensible:
		c.Verb = sensibly(g, g.phase[full])
	default:
		c.Verb = pick(g, model.Create, model.Start, model.Stop, model.Remove, model.Exec, model.Update, model.Reopen, model.Status, model.List)
	}
	switch c.Verb {
	case model.RunPod, model.StopPod, model.RemovePod, model.PodStatus:
	case model.ListPods:
		g.filter(&c, model.Ready, model.NotReady)
	case model.List:
		g.filter(&c, model.Created, model.Running, model.Exited)
	default:
		c.Container = container
	}
	switch c.Verb {
	case model.RunPod:
		g.phase[pod] = 1
		if g.IntN(10) == 0 {
			c.Variant = 1
		}
	case model.StopPod, model.RemovePod:
		g.phase[pod] = 0
	case model.Create:
		g.phase[full] = 1
		c.Variant = g.IntN(len(model.Programs))
		if g.IntN(6) == 0 && len(g.o.Images) > 0 {
			c.Image = pick(g, g.o.Images...)
		}
	case model.Start:
		g.phase[full] = 2
	case model.Stop:
		g.phase[full] = 3
		if g.IntN(2) == 0 && g.o.Grace > 0 {
			c.Grace = 1 + g.IntN(g.o.Grace)
		}
	case model.Remove:
		g.phase[full] = 0
	case model.Update:
		c.Value = model.Values[1+g.IntN(len(model.Values)-1)]
	}
	return c
}

func sensibly(g *generator, phase int) model.Verb {
	switch phase {
	case 0:
		return model.Create
	case 1:
		return pick(g, model.Start, model.Start, model.Start, model.Update, model.Status)
	case 2:
		return pick(g, model.Exec, model.Stop, model.Stop, model.Update, model.Reopen, model.Status, model.List, model.Remove)
	}
	return pick(g, model.Remove, model.Remove, model.Status, model.List, model.Create)
}

func (g *generator) imageCall() model.Call {
	c := model.Call{Verb: pick(g, model.Pull, model.Pull, model.RemoveImage, model.ImageStatus, model.ListImages), Image: pick(g, g.o.Images...)}
	if c.Verb == model.ListImages && g.IntN(2) == 0 {
		c.Image = ""
	}
	return c
}

// filter restricts a list to some objects, at times.
func (g *generator) filter(c *model.Call, states ...model.State) {
	if g.IntN(2) == 0 {
		c.Pod = ""
	}
	if g.IntN(3) == 0 {
		c.State = pick(g, states...)
	}
}

func pick[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }
