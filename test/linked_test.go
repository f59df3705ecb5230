package test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// A template calls methods by names that are in its text. If a template can be executed, the linker
// keeps every exported method of every type in use, which added a fifth to crispd. The names of
// functions remain in a stripped program, for stack traces, so the test can find those of the
// package.
func TestCrispdIsLinkedWithoutTemplates(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(buildOnce(t).dir, "crispd"))
	if err != nil {
		t.Fatal(err)
	}
	const known = "google.golang.org/grpc.(*Server).Serve"
	if !bytes.Contains(data, []byte(known)) {
		t.Fatalf("crispd has no %s: are names kept in another way?", known)
	}
	for _, name := range []string{"text/template.(*Template).Execute", "html/template.(*Template).Execute", "golang.org/x/net/trace.New"} {
		if bytes.Contains(data, []byte(name)) {
			t.Errorf("crispd has %s", name)
		}
	}
}
