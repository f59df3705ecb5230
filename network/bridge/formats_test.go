package bridge

import (
	"os"
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

// The format of a pod's host ports, which are removed by that file.
func TestFormats(t *testing.T) {
	formats.Check(t, "ports", func(data []byte, own *[]element) (err error) {
		n := &Net{Name: "net", DataDir: t.TempDir()}
		if err := os.MkdirAll(n.portsDir(), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(n.portsPath("p"), data, 0o600); err != nil {
			return err
		}
		*own, err = n.loadPorts("p")
		return err
	})
}
