package model

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The histories in testdata are legal ones, and illegal ones in which the first illegal line is
// marked with "# illegal".
func TestHistories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 2 {
		t.Fatalf("histories: %v, %v", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(data), "== ")[1:] {
			name, text, _ := strings.Cut(part, "\n")
			t.Run(name, func(t *testing.T) { checkHistory(t, text) })
		}
	}
}

func checkHistory(t *testing.T, text string) {
	h, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	want, n := -1, 0
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		if strings.Contains(line, "# illegal") {
			want = n
		}
		n++
	}
	var got *Illegal
	err = Rules{}.Check(h)
	switch {
	case want < 0 && err != nil:
		t.Errorf("a legal history: %v", err)
	case want < 0:
	case !errors.As(err, &got):
		t.Errorf("the history is illegal at %q; Check says %v", h[want], err)
	case got.At != want:
		t.Errorf("the history is illegal at %q; Check says at %q: %v", h[want], h[got.At], err)
	}
}

// The output of a failure can be parsed.
func TestHistoryIsReadAsPrinted(t *testing.T) {
	text := `0 a> run-pod pod=web variant=1 patience=20
1 b> list sandbox=1 state=running
0 a< ok id=1
1 b< ok web/a:2:running
2 a> stop pod=web container=a id=2 grace=3
- crash
- up
2 a< lost
3 a> status pod=web container=a id=2
3 a< ok state=exited exit=7 value=512
4 a> list-images
4 a< ok app:3
`
	h, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.String(); got != text {
		t.Errorf("printed:\n%s\nwant:\n%s", got, text)
	}
	for _, bad := range []string{"x", "1 a run-pod", "1 a> run-pod color=red", "1 a< ok a:b:c:d", "1 a> stop grace=much"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// Each wrong answer is listed, and its consequences are not.
func TestDifferences(t *testing.T) {
	h, err := Parse(`
0 a> run-pod pod=p
0 a< ok id=1
1 a> run-pod pod=p
1 a< trouble
2 a> create pod=p container=c sandbox=1
2 a< ok id=2
3 a> start pod=p container=c id=2
3 a< ok
4 a> status pod=p container=c id=2
4 a< ok state=created value=512
5 a> status pod=p container=c id=2
5 a< ok state=created value=512
6 a> stop-pod pod=p id=1
6 a< not-found
7 a> list-pods
7 a< ok p:1:ready
8 a> list-images
8 a< ok app:3
9 a> image-status image=app
9 a< ok id=3
`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := Rules{}.Differences(h)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range all {
		got = append(got, d.Kind())
	}
	want := []string{
		"run-pod in ready: trouble, allowed: ok",
		"status in running: ok created exit=0 value=512",
		"stop-pod in not ready|ready|stopping: not-found, allowed: ok",
		"list-images in not there: ok there",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
}
