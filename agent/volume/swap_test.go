package volume

import "testing"

// /proc/swaps has its heading even on a node without swap.
func TestSwaps(t *testing.T) {
	const heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	for table, want := range map[string]bool{
		"":      false,
		heading: false,
		heading + "/dev/sda2                               partition\t2097148\t\t0\t\t-2\n": true,
	} {
		if got := swaps([]byte(table)); got != want {
			t.Errorf("%q: got %v", table, got)
		}
	}
}
