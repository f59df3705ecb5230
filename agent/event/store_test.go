package event_test

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/crisp-cri/crisp/agent/event"
	v1 "k8s.io/api/core/v1"
)

func open(t *testing.T, dir string, most int) *event.Store {
	t.Helper()
	s, err := event.Open(dir, "n1", most, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func list(s *event.Store) string {
	text := ""
	for _, e := range s.List() {
		text += e.Reason + "=" + strconv.Itoa(int(e.Count)) + " "
	}
	return text
}

func pod() *v1.Pod {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = "default", "web", "1"
	return p
}

// What happens again is counted, over the death of the agent too.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 10)
	on := event.Pod(pod())
	s.Event(on, v1.EventTypeNormal, "A", "a")
	s.Event(on, v1.EventTypeWarning, "B", "b")
	s.Event(on, v1.EventTypeNormal, "A", "a")
	s.Event(event.Container(pod(), "containers", "app"), v1.EventTypeNormal, "A", "a")
	if got, want := list(s), "B=1 A=2 A=1 "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// Not closed: the agent was killed, in the middle of a line.
	f, err := os.OpenFile(filepath.Join(dir, "events.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"metadata":{"na`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	again := open(t, dir, 10)
	again.Event(on, v1.EventTypeNormal, "A", "a")
	if got, want := list(again), "B=1 A=1 A=3 "; got != want {
		t.Errorf("after a restart: %q, want %q", got, want)
	}
	if e := again.List()[0]; e.InvolvedObject.Name != "web" || e.Source.Host != "n1" || e.Name == "" || e.FirstTimestamp.IsZero() {
		t.Errorf("after a restart: %+v", e)
	}
	read, err := event.Read(dir)
	if err != nil || len(read) != 3 {
		t.Errorf("Read: %d events, %v", len(read), err)
	}
}

// Neither the memory nor the file grows without end.
func TestStoreIsBounded(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 10)
	for i := range 1000 {
		s.Event(event.Node("n1"), v1.EventTypeNormal, "N"+strconv.Itoa(i), "")
	}
	if got := s.List(); len(got) != 10 || got[9].Reason != "N999" {
		t.Errorf("%d events", len(got))
	}
	info, err := os.Stat(filepath.Join(dir, "events.jsonl"))
	if err != nil || info.Size() > 20*1000 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
	if got := list(open(t, dir, 10)); got != list(s) {
		t.Errorf("after a restart: %q", got)
	}
}

func TestWatch(t *testing.T) {
	s := open(t, t.TempDir(), 10)
	s.Event(event.Node("n1"), v1.EventTypeNormal, "Before", "")
	list, sub := s.Watch()
	defer sub.Close()
	s.Event(event.Node("n1"), v1.EventTypeNormal, "After", "")
	if e := <-sub.C(); len(list) != 1 || list[0].Reason != "Before" || e.Reason != "After" {
		t.Errorf("%v, then %v", list, e)
	}
}
