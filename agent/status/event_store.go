package status

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/notify"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultMostEvents is how many events the agent's EventStore holds by default.
const DefaultMostEvents = 2000

const (
	maxLine = 1 << 20 // maximum length of a line in bytes, more than any event needs
	// maxMessage is how many bytes of a message are kept: the maximum of an
	// events.k8s.io/v1 Event's note.
	maxMessage = 1024
)

// An EventStore is a Recorder that keeps events in memory and in a file, so that "crisp events" also
// shows those of an agent that was killed. It is safe for concurrent use.
//
// An event that happens again is counted, not listed again: two events are the same if they
// have the same object, type, reason and message. When there are too many events it drops the least
// recent ones.
//
// Each line of the file is a v1.Event in JSON, which replaces earlier lines of the same event.
// Lines are appended without a sync: they survive SIGKILL, and an event that a power cut
// takes is not worth a disk write. The file is rewritten when it has twice as many lines as
// the store may hold events.
type EventStore struct {
	path string
	node string
	most int
	log  *slog.Logger
	hub  notify.Hub[v1.Event]

	mu     sync.Mutex
	events map[sameEvent]*v1.Event // each is replaced, never changed; guarded by mu
	order  []sameEvent             // by last occurrence; guarded by mu
	file   *os.File                // guarded by mu
	lines  int                     // of file; guarded by mu
	serial uint64                  // makes names unique; guarded by mu
}

// sameEvent is the identity of an event.
type sameEvent struct {
	on                    v1.ObjectReference
	kind, reason, message string
}

// OpenEvents returns the EventStore of the file <dir>/events.jsonl, which holds at most most events. node
// is the name of this node. Lines that are longer than maxLine or cannot be decoded are dropped.
// If the file cannot be written, every event tries again.
func OpenEvents(dir, node string, most int, log *slog.Logger) (*EventStore, error) {
	s := &EventStore{path: filepath.Join(dir, "events.jsonl"), node: node, most: most, log: log, events: map[sameEvent]*v1.Event{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.load(); err != nil {
		log.Warn("events not read", "err", err)
	}
	if err := s.compactLocked(); err != nil {
		log.Warn("events not kept", "err", err)
	}
	return s, nil
}

func (s *EventStore) load() error {
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			if err = skipLine(lines); err == nil {
				s.log.Warn("overlong event dropped")
				continue
			}
		} else if len(line) > 0 {
			s.take(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func skipLine(r *bufio.Reader) error {
	for {
		if _, err := r.ReadSlice('\n'); err != bufio.ErrBufferFull {
			return err
		}
	}
}

func (s *EventStore) take(line []byte) {
	e := &v1.Event{}
	if err := json.Unmarshal(line, e); err != nil {
		s.log.Warn("unreadable event dropped", "err", err)
		return
	}
	e.Message = shortenMessage(e.Message)
	s.addLocked(e)
}

// shortenMessage cuts the middle out of a message that is too long. Messages begin with what
// failed and end with why.
func shortenMessage(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	const half = (maxMessage - len("…")) / 2
	return strings.ToValidUTF8(message[:half], "") + "…" + strings.ToValidUTF8(message[len(message)-half:], "")
}

// addLocked adds e as the most recent event. It replaces the same event.
func (s *EventStore) addLocked(e *v1.Event) {
	key := sameEvent{e.InvolvedObject, e.Type, e.Reason, e.Message}
	if _, known := s.events[key]; known {
		i := slices.Index(s.order, key)
		s.order = slices.Delete(s.order, i, i+1)
	}
	s.order = append(s.order, key)
	s.events[key] = e
	for len(s.order) > s.most {
		delete(s.events, s.order[0])
		s.order = s.order[1:]
	}
}

func (s *EventStore) Event(on v1.ObjectReference, kind, reason, message string) {
	message = shortenMessage(message)
	s.mu.Lock()
	now := metav1.Now().Rfc3339Copy()
	key := sameEvent{on, kind, reason, message}
	e := v1.Event{}
	if last, known := s.events[key]; known {
		e = *last
		e.Count++
	} else {
		s.serial++
		e = v1.Event{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
			ObjectMeta: metav1.ObjectMeta{
				Name:              fmt.Sprintf("%s.%x%03x", on.Name, time.Now().UnixNano(), s.serial%0x1000),
				Namespace:         cmp.Or(on.Namespace, metav1.NamespaceDefault),
				CreationTimestamp: now,
			},
			InvolvedObject: on, Type: kind, Reason: reason, Message: message,
			Source: v1.EventSource{Component: "crisp", Host: s.node}, FirstTimestamp: now, Count: 1,
		}
	}
	e.LastTimestamp = now
	s.addLocked(&e)
	if err := s.appendLocked(&e); err != nil {
		s.log.Warn("event not kept", "err", err)
	}
	s.mu.Unlock()
	s.hub.Publish(e)
}

func (s *EventStore) appendLocked(e *v1.Event) error {
	if s.file == nil || s.lines >= 2*s.most {
		return s.compactLocked()
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	s.lines++
	_, err = s.file.Write(append(line, '\n'))
	return err
}

func (s *EventStore) compactLocked() error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	for _, key := range s.order {
		if err := encoder.Encode(s.events[key]); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o750); err != nil {
		return err
	}
	if err := atomicfile.WriteVolatile(s.path, text.Bytes(), 0o600); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if s.file != nil {
		s.file.Close()
	}
	s.file, s.lines = f, len(s.order)
	return nil
}

// List returns all events, the most recent last. They are shared and read-only.
func (s *EventStore) List() []*v1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*v1.Event, 0, len(s.order))
	for _, key := range s.order {
		list = append(list, s.events[key])
	}
	return list
}

// Watch returns all events so far and a subscription to later ones. An event that happens during
// the call may be in both. The caller must Close the subscription.
func (s *EventStore) Watch() ([]*v1.Event, *notify.Subscription[v1.Event]) {
	sub := s.hub.Subscribe(256)
	return s.List(), sub
}

// ReadEvents returns the events of the EventStore in dir without writing anything, for the command line
// while no agent runs. It returns none if there is no file.
func ReadEvents(dir string) ([]v1.Event, error) {
	s := &EventStore{path: filepath.Join(dir, "events.jsonl"), most: DefaultMostEvents, log: slog.New(slog.NewTextHandler(io.Discard, nil)), events: map[sameEvent]*v1.Event{}}
	if err := s.load(); err != nil {
		return nil, err
	}
	var list []v1.Event
	for _, e := range s.List() {
		list = append(list, *e)
	}
	return list, nil
}

// Close closes the file. Later events are only in memory.
func (s *EventStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// A Recorder records events. It does not block and is safe for concurrent use. kind is
// v1.EventTypeNormal or v1.EventTypeWarning. reason is a CamelCase word, that of the kubelet
// if it has one. message is a sentence; an EventStore keeps at most 1024 bytes of it.
type Recorder interface {
	Event(on v1.ObjectReference, kind, reason, message string)
}

var DiscardEvents Recorder = discardEvents{}

type discardEvents struct{}

func (discardEvents) Event(v1.ObjectReference, string, string, string) {}

func PodRef(pod *v1.Pod) v1.ObjectReference {
	return v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}

func ContainerRef(pod *v1.Pod, name string) v1.ObjectReference {
	list := "containers"
	switch {
	case slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name }):
		list = "initContainers"
	case slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name }):
		list = "ephemeralContainers"
	}
	ref := PodRef(pod)
	ref.FieldPath = "spec." + list + "{" + name + "}"
	return ref
}

func NodeRef(name string) v1.ObjectReference {
	return v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name}
}

// RecordBackOffEvents records an event for each container that waits for its back-off in now but
// not in old, which may be nil.
func RecordBackOffEvents(events Recorder, pod *v1.Pod, old, now *v1.PodStatus) {
	if old == nil {
		old = &v1.PodStatus{}
	}
	before := slices.Concat(old.InitContainerStatuses, old.ContainerStatuses)
	for _, c := range slices.Concat(now.InitContainerStatuses, now.ContainerStatuses) {
		if c.State.Waiting == nil || slices.ContainsFunc(before, func(was v1.ContainerStatus) bool {
			return was.Name == c.Name && was.ContainerID == c.ContainerID && was.State.Waiting != nil && was.State.Waiting.Reason == c.State.Waiting.Reason
		}) {
			continue
		}
		on := ContainerRef(pod, c.Name)
		switch c.State.Waiting.Reason {
		case "CrashLoopBackOff":
			text := fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)", c.Name, pod.Name, pod.Namespace, pod.UID)
			if t := c.LastTerminationState.Terminated; t != nil {
				text += fmt.Sprintf(": it ended with code %d (%s)", t.ExitCode, t.Reason)
			}
			events.Event(on, v1.EventTypeWarning, "BackOff", text)
		case "ImagePullBackOff":
			events.Event(on, v1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", c.Image))
		}
	}
}
