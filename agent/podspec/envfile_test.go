package podspec

import (
	"strings"
	"testing"
)

// Files of variables are read as the kubelet reads them.
func TestReadEnvFile(t *testing.T) {
	const good = "# comment\n\nA='1'\n  B='two words' # why\nC='first\nsecond # no comment\n'\nD= 'empty'\nE=''\nA='again'\nF='$A \\n'\n"
	for key, want := range map[string]string{"A": "1", "B": "two words", "C": "first\nsecond # no comment\n", "D": "", "E": "", "F": `$A \n`, "absent": ""} {
		if got, err := readEnvFile(strings.NewReader(good), key); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", key, got, err, want)
		}
	}
	for _, bad := range []string{"A", "A = '1'", "='1'", "A=1", `A="1"`, "A='1", "A='1'x", "A=", "A='1\n2\n"} {
		if got, err := readEnvFile(strings.NewReader(bad), "A"); err == nil {
			t.Errorf("%q is read as %q", bad, got)
		}
	}
}
