package housekeeping

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// events is a recorder of events, as "KIND NAME REASON".
type events []string

func (l *events) Event(on v1.ObjectReference, _, reason, _ string) {
	*l = append(*l, on.Kind+" "+on.Name+" "+reason)
}

// A node that may swap Secrets to a disk reports that; no other node does.
func TestSwapIsReported(t *testing.T) {
	for _, may := range []bool{true, false} {
		var got events
		k := New(Options{NodeName: "n1", Events: &got})
		k.warnOfSwap(may)
		if ok := slices.Equal(got, []string{"Node n1 PossibleMemoryBackedVolumesOnDisk"}); ok != may || len(got) > 1 {
			t.Errorf("it may swap: %v, got %q", may, got)
		}
	}
}
