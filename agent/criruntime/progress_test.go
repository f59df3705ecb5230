package criruntime

import (
	"context"
	"testing"

	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// percents is a PullWatcher that reports these percentages, one after the other.
type percents []int64

func (list percents) Follow(ctx context.Context, image, pod string, report func(pulls.Pull)) {
	for _, n := range list {
		report(pulls.Pull{Image: image, Bytes: n * 1e6, Total: 100e6, AllKnown: true})
	}
}

// A long pull is reported three times, a short one not at all.
func TestQuarters(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	for _, test := range []struct {
		percents percents
		want     []string
	}{
		{percents{0, 10, 20, 25, 30, 50, 60, 75, 80, 99, 100}, []string{
			`Pulling: Pulling image "app": 25 MB of 100 MB have come (25 %, 0 B/s)`,
			`Pulling: Pulling image "app": 50 MB of 100 MB have come (50 %, 0 B/s)`,
			`Pulling: Pulling image "app": 75 MB of 100 MB have come (75 %, 0 B/s)`,
		}},
		{percents{10, 80, 81}, []string{`Pulling: Pulling image "app": 80 MB of 100 MB have come (80 %, 0 B/s)`}},
		{percents{100}, nil},
		{nil, nil},
	} {
		r := &recorder{}
		p := &puller{o: Options{Progress: test.percents}, events: podEvents{r}}
		p.follow(t.Context(), pod, &v1.Container{Name: "app", Image: "app"}, "app:latest", func() {})()
		if d := cmp.Diff(test.want, r.events); d != "" {
			t.Errorf("%v: %s", test.percents, d)
		}
	}
}
