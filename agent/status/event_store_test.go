package status_test

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
)

func open(t *testing.T, dir string, most int) *status.EventStore {
	t.Helper()
	s, err := status.OpenEvents(dir, "n1", most, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func list(s *status.EventStore) string {
	text := ""
	for _, e := range s.List() {
		text += e.Reason + "=" + strconv.Itoa(int(e.Count)) + " "
	}
	return text
}

func podRef() *v1.Pod {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = "default", "web", "1"
	return p
}

// A repeated event is counted, even across a restart of the agent.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 10)
	on := status.PodRef(podRef())
	s.Event(on, v1.EventTypeNormal, "A", "a")
	s.Event(on, v1.EventTypeWarning, "B", "b")
	s.Event(on, v1.EventTypeNormal, "A", "a")
	s.Event(status.ContainerRef(podRef(), "app"), v1.EventTypeNormal, "A", "a")
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
	read, err := status.ReadEvents(dir)
	if err != nil || len(read) != 3 {
		t.Errorf("Read: %d events, %v", len(read), err)
	}
}

// A repeated event is the most recent one, also under the next agent and for the command line.
// Otherwise it would be the first to be dropped.
func TestOrderAfterRestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 2)
	on := status.PodRef(podRef())
	for _, reason := range []string{"A", "B", "A"} {
		s.Event(on, v1.EventTypeNormal, reason, "")
	}
	const want = "B=1 A=2 "
	if got := list(s); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	read, err := status.ReadEvents(dir)
	if err != nil || len(read) != 2 || read[1].Reason != "A" {
		t.Errorf("Read: %v, %v; want B and A", read, err)
	}
	again := open(t, dir, 2) // s is not closed, as after a kill
	if got := list(again); got != want {
		t.Errorf("after a restart: %q, want %q", got, want)
	}
	again.Event(on, v1.EventTypeNormal, "C", "")
	if got, want := list(again), "A=2 C=1 "; got != want {
		t.Errorf("after one more: %q, want %q", got, want)
	}
}

// Memory and file are both bounded.
func TestStoreIsBounded(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 10)
	for i := range 1000 {
		s.Event(status.NodeRef("n1"), v1.EventTypeNormal, "N"+strconv.Itoa(i), "")
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
	s.Event(status.NodeRef("n1"), v1.EventTypeNormal, "Before", "")
	list, sub := s.Watch()
	defer sub.Close()
	s.Event(status.NodeRef("n1"), v1.EventTypeNormal, "After", "")
	if e := <-sub.C(); len(list) != 1 || list[0].Reason != "Before" || e.Reason != "After" {
		t.Errorf("%v, then %v", list, e)
	}
}

// A damaged file does not prevent the agent from starting: unreadable or overlong lines are
// dropped, and the rest is kept.
func TestDamagedFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "events.jsonl")
	s := open(t, dir, 10)
	on := status.PodRef(podRef())
	s.Event(on, v1.EventTypeNormal, "A", "a")
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s.Event(on, v1.EventTypeNormal, "B", "b")
	both, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	long := []byte(`{"message":"` + strings.Repeat("x", 3<<20) + "\"}\n")
	if err := os.WriteFile(path, slices.Concat(first, long, both[len(first):]), 0o600); err != nil {
		t.Fatal(err)
	}
	if read, err := status.ReadEvents(dir); err != nil || len(read) != 2 {
		t.Errorf("Read: %d events, %v", len(read), err)
	}
	again := open(t, dir, 10)
	again.Event(on, v1.EventTypeNormal, "A", "a")
	if got, want := list(again), "B=1 A=2 "; got != want {
		t.Errorf("after a long line: %q, want %q", got, want)
	}

	// The file can be neither read nor written until it is repaired.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	blind := open(t, dir, 10)
	blind.Event(on, v1.EventTypeNormal, "C", "c")
	if got, want := list(blind), "C=1 "; got != want {
		t.Errorf("without a file: %q, want %q", got, want)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	blind.Event(on, v1.EventTypeNormal, "D", "d")
	if got, want := list(open(t, dir, 10)), "C=1 D=1 "; got != want {
		t.Errorf("when it can be written again: %q, want %q", got, want)
	}
}

// A message may contain a long path, a probe's output or an error of the runtime.
func TestLongMessage(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 10)
	on := status.PodRef(podRef())
	message := "stat /" + strings.Repeat("\u00e4", 1<<20) + ": no such file"
	s.Event(on, v1.EventTypeWarning, "A", message)
	s.Event(on, v1.EventTypeWarning, "A", message)
	got := s.List()[0].Message
	if len(got) > 1024 || !utf8.ValidString(got) || !strings.HasPrefix(got, "stat /ää") || !strings.HasSuffix(got, "ää: no such file") {
		t.Errorf("a message of %d bytes: %q", len(got), got)
	}
	if got, want := list(open(t, dir, 10)), "A=2 "; got != want {
		t.Errorf("after a restart: %q, want %q", got, want)
	}
}
