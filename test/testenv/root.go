package testenv

import (
	"os"
	"testing"
)

// Root reports whether tests may do what needs root. CRISP_TEST_ROOT=no forbids it to root,
// too: `make unit` does the same, and takes as long, for every user.
func Root() bool { return os.Geteuid() == 0 && os.Getenv("CRISP_TEST_ROOT") != "no" }

// NeedRoot skips the test if Root is false. The reason says what it does, as in "it mounts".
func NeedRoot(t testing.TB, why string) {
	t.Helper()
	if !Root() {
		t.Skip("needs root: " + why)
	}
}
