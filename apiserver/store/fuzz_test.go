package store_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/apiserver/store"
)

// FuzzOpen starts the agent with arbitrary content in a file of its store. It must start, leave the
// file unchanged, list only objects with names, and allow others to be added and deleted.
func FuzzOpen(f *testing.F) {
	for _, text := range []string{
		`{"uid":"1","created":"2026-01-01T00:00:00Z","generation":1,"version":7,"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"a","image":"b"}]}},"applied":{"m":{}}}`,
		`{"object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web","annotations":null},"data":{"a":"1"}},"deleted":"2026-01-01T00:00:00Z","grace":-1}`,
		`{"version":18446744073709551615,"object":null}`, `{"object":"---"}`, `{"object":[]}`, `null`, `[]`, ``, `{"object":{"kind":"List","apiVersion":"v1","items":[]}}`,
		`{"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"other"}}}`, `{"applied":{"":null},"object":{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "pod", "default", "web.json")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir)
		for _, file := range s.Update().Files {
			for _, o := range file.Objects {
				if o.GetName() == "" {
					t.Errorf("an object has no name (%v)", file.Err)
				}
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, text) {
			t.Errorf("the file has become %q (%v)", got, err)
		}
		before := s.Update()
		if _, _, _, err := s.Put([]byte(config), store.PutOptions{}); err != nil {
			t.Errorf("nothing can be kept beside it: %v", err)
		}
		if again := open(t, dir).Update(); len(again.Files) < len(before.Files) {
			t.Errorf("%d objects have become %d", len(before.Files), len(again.Files))
		}
	})
}
