// Package model defines what a client of CRI v1 may observe: which answers are legal after
// which history of calls, including overlapping ones. It is written from the comments of
// cri-api's api.proto and knows nothing of crisp.
//
// A History is what clients have observed, in that order: a call, its answer, and what
// happened to the node. A call takes effect at some moment between the two. A call without an
// answer (its client left, or the runtime died) has taken effect completely or not at all, or
// does so at any later moment until the node is quiet. Calls about several objects, such as
// StopPodSandbox, take effect on one after the other.
//
// Check follows all states in which the node can be. If none is left, no runtime can show that
// history:
//
//	              call          moves of calls under way         answer
//	{possible} ──────────▶ … ──────────────────────────▶ … ──────────────▶ {those it fits}
//
// Objects are followed separately where CRI promises nothing about them together: each pod
// with its containers, each image. A list is an observation of each object, and these need not
// be of the same moment.
package model

import (
	"fmt"
	"strconv"
	"strings"
)

// A Verb is the kind of a call.
type Verb string

// The calls of the model. Those about a pod name it by Call.Pod, and also by Call.ID unless they
// make it; those about a container likewise.
const (
	RunPod    Verb = "run-pod"
	StopPod   Verb = "stop-pod"
	RemovePod Verb = "remove-pod"
	PodStatus Verb = "pod-status"
	ListPods  Verb = "list-pods"
	UpdatePod Verb = "update-pod" // of what the model does not show

	Create     Verb = "create" // in the sandbox Call.Sandbox
	Start      Verb = "start"
	Stop       Verb = "stop" // within Call.Grace
	Remove     Verb = "remove"
	Exec       Verb = "exec"   // of a command that exits with 0 at once
	Update     Verb = "update" // to Call.Value
	Reopen     Verb = "reopen"
	Checkpoint Verb = "checkpoint" // which leaves it running
	Status     Verb = "status"
	List       Verb = "list"

	Pull        Verb = "pull"
	RemoveImage Verb = "remove-image"
	ImageStatus Verb = "image-status"
	ListImages  Verb = "list-images"
)

// A Call is a request.
type Call struct {
	Verb      Verb
	Pod       string // name of the pod; in lists, the only one wanted, "" = all
	Container string // name of the container in it
	Image     string // name of the image; in lists, the only one wanted
	ID        string // of the object; in lists, the only one wanted
	Sandbox   string // ID, of Create; in lists of containers, the only one wanted
	State     State  // in lists, the only one wanted
	Variant   int    // which configuration: an index of Programs
	Value     int    // of Update: CPU shares
	Grace     int    // of Stop, in seconds
	Patience  int    // milliseconds after which the client leaves, 0 = never
}

// A Code is how a call ended.
type Code string

// The results of calls, gRPC's codes by their meaning for the model.
const (
	OK       Code = "ok"
	NotFound Code = "not-found"
	Exists   Code = "exists"
	BadState Code = "bad-state" // FailedPrecondition
	Invalid  Code = "invalid"
	Left     Code = "left"    // the client has left
	Trouble  Code = "trouble" // any other error: a failure of the node
	Lost     Code = "lost"    // the runtime died before it answered
)

// Unsettled reports whether the effects of a call with this code are unknown.
func (c Code) Unsettled() bool { return c == Left || c == Trouble || c == Lost }

// A State is where an object is in its life, in CRI's words.
type State string

// The states of sandboxes, then those of containers.
const (
	Ready    State = "ready"
	NotReady State = "not-ready"
	Created  State = "created"
	Running  State = "running"
	Exited   State = "exited"
	Unknown  State = "unknown"
)

// An Answer is the result of a call.
type Answer struct {
	Code  Code
	ID    string // of an object that was made, pulled or found
	State State  // of statuses
	Exit  int    // exit code, of Exec and of the status of an exited container
	Value int    // of the status of a container: CPU shares
	Items []Item // of lists
	Text  string // of an error, for people
}

// An Item is one object of a list.
type Item struct {
	Pod, Container, Image string
	ID, Sandbox           string
	State                 State
}

// A Kind is the kind of an Event.
type Kind string

// The kinds of events.
const (
	Begin        Kind = "begin"         // of Event.Call, by the client
	End          Kind = "end"           // the client has Event.Answer
	Crash        Kind = "crash"         // the runtime has ended, on request or not, and calls may not reach it
	Up           Kind = "up"            // the runtime answers again
	ExecutorGone Kind = "executor-gone" // the parent of the containers has died, with or without the runtime
	Faults       Kind = "faults"        // from here on the machine fails at times
	Mended       Kind = "mended"        // it does not fail any more
	Listening    Kind = "listening"     // a new subscriber of events, which replaces the one before
	Reported     Kind = "reported"      // an event has reported that Event.Answer.ID is in Event.Answer.State
	Quiet        Kind = "quiet"         // all calls have ended, and time has passed for their remaining effects and for the exits of programs
)

// An Event is one observation.
type Event struct {
	Kind   Kind
	N      int // number of the call, of Begin and End
	Client string
	Call   Call
	Answer Answer
}

// A History is events in the order of observation.
type History []Event

// A Program is how a container's process behaves.
type Program struct {
	Name string
	Ends bool // by itself, with Code, at some time after its start
	Code int
	Term int // exit code on SIGTERM
}

// Programs are indexed by Call.Variant. Another variant is another configuration.
var Programs = []Program{
	{Name: "stays", Term: 75},
	{Name: "stubborn", Term: Killed}, // does not end on SIGTERM
	{Name: "quits", Ends: true, Code: 7, Term: 75},
}

// Killed is the exit code after SIGKILL, LostCode that of an exit that was not observed, and
// NeverRan that of a program that could not be executed.
const (
	Killed   = 137
	LostCode = 255
	NeverRan = 128
)

// Values are the values of Update. Containers are made with the first.
var Values = []int{512, 256, 1024}

func (c Call) String() string {
	b := []string{string(c.Verb)}
	text := func(key, v string) {
		if v != "" {
			b = append(b, key+"="+v)
		}
	}
	number := func(key string, v int) {
		if v != 0 {
			b = append(b, key+"="+strconv.Itoa(v))
		}
	}
	text("pod", c.Pod)
	text("container", c.Container)
	text("image", c.Image)
	text("id", c.ID)
	text("sandbox", c.Sandbox)
	text("state", string(c.State))
	number("variant", c.Variant)
	number("value", c.Value)
	number("grace", c.Grace)
	number("patience", c.Patience)
	return strings.Join(b, " ")
}

func (a Answer) String() string {
	b := []string{string(a.Code)}
	for _, f := range []struct{ key, v string }{{"id", a.ID}, {"state", string(a.State)}} {
		if f.v != "" {
			b = append(b, f.key+"="+f.v)
		}
	}
	if a.Exit != 0 {
		b = append(b, "exit="+strconv.Itoa(a.Exit))
	}
	if a.Value != 0 {
		b = append(b, "value="+strconv.Itoa(a.Value))
	}
	for _, it := range a.Items {
		b = append(b, it.String())
	}
	if a.Text != "" {
		b = append(b, fmt.Sprintf("# %s", a.Text))
	}
	return strings.Join(b, " ")
}

// String returns name:id:state, where the name of a container is pod/container.
func (it Item) String() string {
	switch {
	case it.Image != "":
		return fmt.Sprintf("%s:%s", it.Image, it.ID)
	case it.Container != "":
		return fmt.Sprintf("%s/%s:%s:%s", it.Pod, it.Container, it.ID, it.State)
	}
	return fmt.Sprintf("%s:%s:%s", it.Pod, it.ID, it.State)
}

func (e Event) String() string {
	switch e.Kind {
	case Begin:
		return fmt.Sprintf("%d %s> %s", e.N, e.Client, e.Call)
	case End:
		return fmt.Sprintf("%d %s< %s", e.N, e.Client, e.Answer)
	}
	if e.Kind == Reported {
		return fmt.Sprintf("- reported %s id=%s state=%s", e.Answer.Code, e.Answer.ID, e.Answer.State)
	}
	return "- " + string(e.Kind)
}

func (h History) String() string {
	var b strings.Builder
	for _, e := range h {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// Parse is the inverse of History.String. Empty lines, and comments after " # ", are ignored.
func Parse(text string) (History, error) {
	var h History
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, " # ")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		e, err := parseEvent(f)
		if err != nil {
			return nil, fmt.Errorf("line %d, %q: %w", i+1, line, err)
		}
		h = append(h, e)
	}
	return h, nil
}

func parseEvent(f []string) (e Event, err error) {
	if len(f) < 2 {
		return e, fmt.Errorf("too few words")
	}
	if f[0] == "-" {
		e.Kind = Kind(f[1])
		if e.Kind == Reported && len(f) > 2 {
			e.Answer, err = parseAnswer(f[2], f[3:])
		}
		return e, err
	}
	if e.N, err = strconv.Atoi(f[0]); err != nil || len(f) < 3 {
		return e, fmt.Errorf("no number of a call, a client and a verb or code")
	}
	who := f[1]
	e.Client = who[:len(who)-1]
	switch who[len(who)-1] {
	case '>':
		e.Kind = Begin
		e.Call, err = ParseCall(f[2], f[3:])
	case '<':
		e.Kind = End
		e.Answer, err = parseAnswer(f[2], f[3:])
	default:
		err = fmt.Errorf("client %q does not end with > or <", who)
	}
	return e, err
}

// ParseCall is the inverse of Call.String, for separate words.
func ParseCall(verb string, fields []string) (Call, error) {
	c := Call{Verb: Verb(verb)}
	for _, f := range fields {
		key, v, _ := strings.Cut(f, "=")
		var err error
		switch key {
		case "pod":
			c.Pod = v
		case "container":
			c.Container = v
		case "image":
			c.Image = v
		case "id":
			c.ID = v
		case "sandbox":
			c.Sandbox = v
		case "state":
			c.State = State(v)
		case "variant":
			c.Variant, err = strconv.Atoi(v)
		case "value":
			c.Value, err = strconv.Atoi(v)
		case "grace":
			c.Grace, err = strconv.Atoi(v)
		case "patience":
			c.Patience, err = strconv.Atoi(v)
		default:
			err = fmt.Errorf("unknown field %q", key)
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

func parseAnswer(code string, fields []string) (Answer, error) {
	a := Answer{Code: Code(code)}
	for _, f := range fields {
		key, v, field := strings.Cut(f, "=")
		var err error
		switch {
		case !field:
			var it Item
			if it, err = parseItem(f); err == nil {
				a.Items = append(a.Items, it)
			}
		case key == "id":
			a.ID = v
		case key == "state":
			a.State = State(v)
		case key == "exit":
			a.Exit, err = strconv.Atoi(v)
		case key == "value":
			a.Value, err = strconv.Atoi(v)
		default:
			err = fmt.Errorf("unknown field %q", key)
		}
		if err != nil {
			return a, err
		}
	}
	return a, nil
}

func parseItem(f string) (it Item, err error) {
	p := strings.Split(f, ":")
	switch {
	case len(p) == 2:
		return Item{Image: p[0], ID: p[1]}, nil
	case len(p) == 3:
		it = Item{ID: p[1], State: State(p[2])}
		it.Pod, it.Container, _ = strings.Cut(p[0], "/")
		return it, nil
	}
	return it, fmt.Errorf("item %q is not name:id or name:id:state", f)
}
