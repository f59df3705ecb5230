package desired_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// file reads "a.yaml web@1 db@2": a path, then pods with their UIDs; "a.yaml !"
// is broken.
func file(text string) source.File {
	words := strings.Fields(text)
	f := source.File{Path: words[0]}
	for _, word := range words[1:] {
		if word == "!" {
			f.Err = errors.New(f.Path + " is broken")
			continue
		}
		name, uid, _ := strings.Cut(word, "@")
		p := &v1.Pod{}
		p.Namespace, p.Name, p.UID = "default", name, types.UID(uid)
		p.Annotations = map[string]string{manifest.AnnotationFile: f.Path}
		f.Pods = append(f.Pods, p)
	}
	return f
}

func update(files ...string) source.Update {
	u := source.Update{Source: "file"}
	for _, text := range files {
		u.Files = append(u.Files, file(text))
	}
	return u
}

func apply(s *desired.Store, files ...string) (changes, problems string) {
	list, errs := s.Update(update(files...))
	var words []string
	for _, c := range list {
		word := "-" + c.Key.Name
		if c.Pod != nil {
			word = c.Key.Name + "@" + string(c.Pod.UID)
		}
		words = append(words, word)
	}
	for _, err := range errs {
		problems += err.Error() + "\n"
	}
	return strings.Join(words, " "), problems
}

func TestUpdate(t *testing.T) {
	s := desired.New(nil)
	if s.Ready() {
		t.Error("ready before the source has reported")
	}
	for _, step := range []struct {
		name            string
		files           []string
		changes, broken string
	}{
		{"first", []string{"a web@1", "b db@1"}, "db@1 web@1", ""},
		{"nothing new", []string{"a web@1", "b db@1"}, "", ""},
		{"an edit", []string{"a web@2", "b db@1"}, "web@2", ""},
		{"a broken file keeps its pod", []string{"a !", "b db@1"}, "", "a is broken\n"},
		{"and is told once", []string{"a !", "b db@1"}, "", ""},
		{"and harms nobody", []string{"a !", "b db@2"}, "db@2", ""},
		{"repaired", []string{"a web@3", "b db@2"}, "web@3", ""},
		{"a broken file that goes takes its pod along", []string{"b db@2"}, "-web", ""},
		{"a name that is taken", []string{"b db@2", "c db@9 new@1"}, "new@1", "c: metadata.name: pod default/db is already defined in b\n"},
		{"free again", []string{"c db@9 new@1"}, "db@9", ""},
		{"renamed", []string{"d db@9 new@1"}, "", ""},
		{"none", nil, "-db -new", ""},
	} {
		changes, broken := apply(s, step.files...)
		if changes != step.changes || broken != step.broken {
			t.Errorf("%s: changes %q, problems %q; want %q, %q", step.name, changes, broken, step.changes, step.broken)
		}
	}
	if !s.Ready() {
		t.Error("not ready after the source has reported")
	}
}

// After a restart of the agent, a pod whose file is broken by now is wanted as
// it was accepted; one whose file is gone is not.
func TestAccepted(t *testing.T) {
	s := desired.New(slices.Concat(file("a web@1").Pods, file("b db@1").Pods))
	if changes, _ := apply(s, "a !"); changes != "web@1" {
		t.Errorf("changes %q, want web@1", changes)
	}
}
