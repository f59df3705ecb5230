package source_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	v1 "k8s.io/api/core/v1"
)

// A server serves a text and counts the "not modified" answers.
type server struct {
	mu        sync.Mutex
	text      string // "" makes the server fail
	unchanged int    // number of "not modified" answers
	token     string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = r.Header.Get("Authorization")
	switch {
	case s.text == "":
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.Header.Get("If-None-Match") == `"`+s.text+`"`:
		s.unchanged++
		w.WriteHeader(http.StatusNotModified)
	default:
		w.Header().Set("ETag", `"`+s.text+`"`)
		io.WriteString(w, s.text)
	}
}

func (s *server) set(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = text
}

// poll starts a URL source.
func poll(t *testing.T, url string, copies source.Copies) (expect func(want string), stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	updates, ended := make(chan source.Update), make(chan struct{})
	u := &source.URL{URL: url, Copies: copies, Every: 5 * time.Millisecond, Header: http.Header{"Authorization": {"Bearer x"}},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Decode: func(_ string, data []byte, _ bool) ([]manifest.Object, manifest.Errors, error) {
			if string(data) == "!" {
				return nil, nil, errors.New("broken")
			}
			pod := &v1.Pod{}
			pod.Name = string(data)
			return []manifest.Object{pod}, nil, nil
		}}
	go func() {
		defer close(ended)
		u.Run(ctx, updates)
	}()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return func(want string) {
		t.Helper()
		u := <-updates
		_, got, _ := strings.Cut(describe(u), "=")
		if !strings.HasSuffix(got, want) || len(u.Files) != 1 {
			t.Fatalf("got %q, want %q", got, want)
		}
	}, stop
}

// The last good answer stays wanted while the server is down, even across a restart of the agent.
func TestURL(t *testing.T) {
	s := &server{text: "a"}
	h := httptest.NewServer(s)
	defer h.Close()
	copies := source.Copies(filepath.Join(t.TempDir(), "copies"))
	expect, stop := poll(t, h.URL, copies)
	expect("a")
	s.set("b")
	expect("b")
	s.set("!")
	expect("broken:b")
	s.set("")
	expect("503 Service Unavailable:b")
	s.set("c")
	expect("c")
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		n, token := s.unchanged, s.token
		s.mu.Unlock()
		if n > 0 && token == "Bearer x" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d answers without content, token %q", n, token)
		}
	}
	stop()

	s.set("")
	expect, _ = poll(t, h.URL, copies)
	expect("503 Service Unavailable:c") // a start without the server
	s.set("d")
	expect("d")
}

// Before the first answer there is no update, which would end pods.
func TestURLNeverThere(t *testing.T) {
	s := &server{}
	h := httptest.NewServer(s)
	defer h.Close()
	expect, _ := poll(t, h.URL, source.Copies(filepath.Join(t.TempDir(), "copies")))
	time.Sleep(50 * time.Millisecond)
	s.set("a")
	expect("a") // no update came before
}
