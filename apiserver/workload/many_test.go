package workload

import "testing"

// A workload may want ten thousand pods, and is planned under the lock of all wanted pods. So the
// indexes of new pods are found in one pass.
func TestFirstFreeLooksOnce(t *testing.T) {
	const pods = 10000
	looks := map[int]int{}
	taken := func(i int) bool { looks[i]++; return i%2 == 0 }
	free := firstFree(pods, []int{7, 4, 7}, taken)
	if len(free) != pods || free[0] != 7 || free[1] != 1 || free[2] != 3 || free[4] != 9 || free[pods-1] != 2*pods-1 {
		t.Errorf("%d numbers: %v … %d", len(free), free[:5], free[len(free)-1])
	}
	for i, n := range looks {
		if n > 2 {
			t.Errorf("%d is looked at %d times", i, n)
		}
	}
}
