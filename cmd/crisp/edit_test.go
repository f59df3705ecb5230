package main

import (
	"os"
	"testing"
)

// A cancelled edit changes nothing, and leaves no copy of the object, which may be a Secret.
func TestEditGivenUp(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.until("status -o json", `"alive": true`)
	n.expect(expectation{"apply -f " + n.file("s.yaml", "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {key: hidden}}"), 0, "created"})
	t.Setenv("TMPDIR", t.TempDir())
	for editor, want := range map[string]expectation{
		"false": {"edit secret/s", exitFailure, "nothing was changed"},
		"true":  {"edit secret/s", 0, "secret/s unchanged"},
	} {
		t.Setenv("KUBE_EDITOR", editor)
		n.expect(want)
		if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
			t.Errorf("the editor %s leaves %v, %v", editor, left, err)
		}
	}
}

// A blank variable does not name an editor: the file must not be run in its place.
func TestBlankEditor(t *testing.T) {
	c := &cli{ctx: t.Context()}
	t.Setenv("KUBE_EDITOR", " ")
	t.Setenv("VISUAL", "\t")
	t.Setenv("EDITOR", "true")
	if err := c.runEditor(t.TempDir() + "/object.yaml"); err != nil {
		t.Error(err)
	}
}
