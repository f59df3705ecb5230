package formats

import (
	"encoding/json"
	"strings"
	"testing"
)

// Data that a release no longer reads is reported, and data that only a later release writes is
// not.
func TestLosses(t *testing.T) {
	const old = `{"Name": "a", "Ports": [1, 2], "Of": {"User": 7, "Group": 0}}`
	type same struct {
		Name  string
		Ports []int
		Of    struct{ User, Group int }
		New   bool
	}
	if lost := losses([]byte(old), func(data []byte, v *same) error { return json.Unmarshal(data, v) }); len(lost) > 0 {
		t.Errorf("nothing is lost, and %q is reported", lost)
	}
	type renamed struct {
		Title string
		Ports [1]int
		Of    struct{ Owner int }
	}
	lost := strings.Join(losses([]byte(old), func(data []byte, v *renamed) error { return json.Unmarshal(data, v) }), "; ")
	for _, want := range []string{"Name was a", "Ports[1] was 2", "Of.User was 7"} {
		if !strings.Contains(lost, want) {
			t.Errorf("not reported: %s: %s", want, lost)
		}
	}
	strict := func(data []byte, v *same) error {
		d := json.NewDecoder(strings.NewReader(string(data)))
		d.DisallowUnknownFields()
		return d.Decode(v)
	}
	if lost := losses([]byte(old), strict); len(lost) == 0 {
		t.Error("a reader that refuses unknown fields passes")
	}
}
