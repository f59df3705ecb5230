package pulls_test

import (
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/google/go-cmp/cmp"
)

var begun = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func pull(bytes, total int64, rate float64) pulls.Pull {
	return pulls.Pull{Image: "docker.io/library/web:1", Begun: begun, Bytes: bytes, Total: total, Rate: rate, AllKnown: true, Layers: []pulls.Layer{{}}}
}

// The progress that users see.
func TestString(t *testing.T) {
	unknown := pull(5e6, 0, 1e6)
	unknown.AllKnown = false
	for _, test := range []struct {
		of   pulls.Pull
		want string
	}{
		{pulls.Pull{}, "asking the registry"},
		{pull(430e6, 1000e6, 12e6), "43 %, 12 MB/s, 48 s left"},
		{pull(439_999_999, 1000e6, 1.25e6), "43 %, 1.2 MB/s, 7 m left"},
		{pull(0, 1000e6, 0), "0 %, 0 B/s"},
		{pull(1, 9e15, 1), "0 %, 1 B/s"}, // a remaining time without end is left out
		{pull(999, 1000, 10), "99 %, 10 B/s, 1 s left"},
		{pull(1000, 1000, 10), "100 %, unpacking"},
		{pull(0, 0, 0), "100 %, unpacking"},
		{unknown, "5.0 MB, 1.0 MB/s"},
	} {
		if got := test.of.String(); got != test.want {
			t.Errorf("%d of %d: %q, want %q", test.of.Bytes, test.of.Total, got, test.want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{-1: "0 B", 0: "0 B", 999: "999 B", 1000: "1.0 kB", 9949: "9.9 kB", 9960: "10 kB", 999_499: "999 kB", 999_500: "1.0 MB", 12e9: "12 GB", 9e18: "9.0 EB"} {
		if got := pulls.Size(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestBar(t *testing.T) {
	for f, want := range map[float64]string{-1: "[>    ]", 0: "[>    ]", 0.5: "[==>  ]", 0.99: "[====>]", 1: "[=====]", 2: "[=====]"} {
		if got := pulls.Bar(f, 7); got != want {
			t.Errorf("%v: %q, want %q", f, got, want)
		}
	}
}

// A pod waits for the first pull that names it and has not ended.
func TestOf(t *testing.T) {
	over, later, first := pull(0, 1, 0), pull(0, 1, 0), pull(0, 1, 0)
	over.Ended, later.Begun, later.Image = begun, begun.Add(time.Second), "later"
	for _, p := range []*pulls.Pull{&over, &later, &first} {
		p.For = []string{"default/web"}
	}
	if p, ok := pulls.Of([]pulls.Pull{over, later, first}, "default/web"); !ok || p.Image != first.Image || !p.Ended.IsZero() {
		t.Errorf("%v, %v", p, ok)
	}
	if p, ok := pulls.Of([]pulls.Pull{over, later, first}, "default/we"); ok {
		t.Errorf("another pod waits for %v", p)
	}
}

func TestSame(t *testing.T) {
	p := pull(0, 0, 0)
	p.Image = "docker.io/library/web:latest"
	for name, want := range map[string]bool{"web": true, "web:latest": true, "library/web": true, "docker.io/library/web:latest": true, "docker.io/library/web": true, "eb": false, "web:1": false, "": false} {
		if got := p.Same(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

// The list of "crispd debug pulls", and the bars of "crisp pull".
func TestWrite(t *testing.T) {
	p := pull(50, 200, 10)
	p.From, p.Mirror, p.Stage, p.Waiters, p.For = "mirror.test", true, "layers", 2, []string{"default/web"}
	p.Layers = []pulls.Layer{
		{Digest: "sha256:0123456789abcdef", Size: 100, Bytes: 50, State: pulls.Downloading},
		{Digest: "sha256:1123456789abcdef", Size: 100, State: pulls.Waiting},
		{Digest: "short", Size: 7, State: pulls.Here},
	}
	failed := pulls.Pull{Image: "x", Begun: begun, Ended: begun.Add(time.Second), Err: "no"}
	var b strings.Builder
	if err := pulls.Write(&b, []pulls.Pull{p, failed}, begun.Add(5*time.Second)); err != nil {
		t.Fatal(err)
	}
	want := `IMAGE                    STAGE        FOR  BYTES   PROGRESS                FROM                  WAITERS
docker.io/library/web:1  layers       5s   50/200  25 %, 10 B/s, 15 s left  mirror.test (mirror)  2 (default/web)
  0123456789ab           downloading       50/100
  1123456789ab           waiting           0/100
  short                  here              0/7
x                        -            1s   0/0     failed  -  0
`
	if d := cmp.Diff(fields(want), fields(b.String())); d != "" {
		t.Error(d)
	}
	wantBars := []string{
		"0123456789ab [====>    ] 50 B of 100 B", "1123456789ab [>        ] waiting", "short [=========] here",
		"25 %, 10 B/s, 15 s left: docker.io/library/web:1 from the mirror mirror.test",
	}
	if d := cmp.Diff(wantBars, p.Bars(11)); d != "" {
		t.Error(d)
	}
}

func fields(text string) [][]string {
	var lines [][]string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}
