package noleaks_test

import (
	"testing"

	"github.com/crisp-cri/crisp/test/noleaks"
)

// Goroutines are counted by their stacks, except those that serve the request.
func TestStacks(t *testing.T) {
	const profile = "goroutine profile: total 4\n3 @ 0x1 0x2\n#\t0x1\tmain.work+0x1\t/a.go:1\n#\t0x2\tmain.main+0x2\t/a.go:2\n\n" +
		"1 @ 0x3\n#\t0x3\truntime/pprof.write+0x1\t/b.go:1\n\n"
	got := noleaks.Stacks(profile)
	if len(got) != 1 || got["main.work+0x1 < main.main+0x2"] != 3 {
		t.Errorf("got %v", got)
	}
	if got := noleaks.Begun(profile); len(got) != 1 || got["main.main"] != 3 {
		t.Errorf("begun are %v", got)
	}
}
