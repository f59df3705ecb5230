package housekeeping

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// told is a recorder of events, as "KIND NAME REASON".
type told []string

func (l *told) Event(on v1.ObjectReference, _, reason, _ string) {
	*l = append(*l, on.Kind+" "+on.Name+" "+reason)
}

// A node whose Secrets may come to lie on a disk says so, and no other does.
func TestSwapIsReported(t *testing.T) {
	for _, may := range []bool{true, false} {
		var events told
		k := New(Options{NodeName: "n1", Events: &events})
		k.warnOfSwap(may)
		if got := slices.Equal(events, []string{"Node n1 PossibleMemoryBackedVolumesOnDisk"}); got != may || len(events) > 1 {
			t.Errorf("it may swap: %v, told %q", may, events)
		}
	}
}
