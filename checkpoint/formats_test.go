package checkpoint

import (
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/test/formats"
)

// The format of boot.json, and of the envelope of all records.
func TestFormats(t *testing.T) {
	formats.Check[bootFile](t, "boot", nil)
	data, err := encode(map[string]string{"a": "b"})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"version":1,"checksum":"sha256:db4a7ecb114bc66c623a06c4ff6fe8daa2f49cc270ebbf7a1f81e22ab061c837","payload":{"a":"b"}}`
	if got := strings.TrimSpace(string(data)); got != want {
		t.Errorf("a record is written as %s, want %s", got, want)
	}
	if payload, err := decode([]byte(want)); err != nil || string(payload) != `{"a":"b"}` {
		t.Errorf("a record is read as %s, %v", payload, err)
	}
}
