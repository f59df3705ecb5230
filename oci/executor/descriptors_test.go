package executor_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/oci/wire"
)

// However many descriptors the executor has open, a program's descriptors start at 0, since the
// kernel assigns the lowest free numbers to its 70 files. Kernels with CVE-2024-45025 may remember
// which words of 64 were full when a table was cut.
func TestDescriptorsStartLow(t *testing.T) {
	n := start(t)
	for range 60 {
		n.run([]string{"sleep", "for-ever"})
	}
	if own := n.open(""); own < 4*64 {
		t.Fatalf("the executor has %d descriptors, too few for the test", own)
	}
	b := n.run([]string{"open", "70", "sleep", "for-ever"})
	b.says("\n")
	e := b.exec(wire.ExecRequest{Process: process("open", "70")})
	for what, got := range map[string]string{"container": b.output("stdout"), "exec": line(t, e.files["stdout"])} {
		if highest, err := strconv.Atoi(strings.TrimSpace(got)); err != nil || highest >= 128 {
			t.Errorf("the highest of 70 files of the %s is %q", what, got)
		}
	}
	e.wait()
}
