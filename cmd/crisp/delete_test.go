package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Pods that take their time to end take it side by side: all are deleted before one is waited for.
func TestDeletionsBeginAtOnce(t *testing.T) {
	n := newNode(t)
	var mu sync.Mutex
	var deleted []string
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		name := filepath.Base(r.URL.Path)
		switch {
		case r.Method == http.MethodDelete && name == "taken":
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, `{"kind":"Status","message":"pod taken is another's","reason":"Forbidden"}`)
		case r.Method == http.MethodDelete:
			deleted = append(deleted, name)
			io.WriteString(w, "{}")
		case !slices.Contains(deleted, name) || len(deleted) == 3: // a pod ends once all were deleted
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"kind":"Status","message":"there is no pod","reason":"NotFound"}`)
		default:
			io.WriteString(w, `{"kind":"Pod","metadata":{"name":"`+name+`"}}`)
		}
	}))
	if err := os.MkdirAll(filepath.Join(n.dir, "agent"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.Listener = listen(t, filepath.Join(n.dir, "agent", "agent.sock"))
	s.Start()
	defer s.Close()
	out, errs, code := n.crisp("delete pod/a pod/b pod/c pod/taken pod/d --timeout 5s")
	if want := "pod/a deleted\npod/b deleted\npod/c deleted\n"; out != want || code != exitFailure || !strings.Contains(errs, "another's") || strings.Join(deleted, "") != "abc" {
		t.Errorf("code %d, %s%s, deleted %q", code, out, errs, deleted)
	}
}
