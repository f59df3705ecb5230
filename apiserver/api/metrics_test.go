package api

import (
	"net/http/httptest"
	"testing"
	"time"
)

// Samples of one name are adjacent, as Prometheus' text format requires. An invalid sample does not
// affect the others.
func TestPage(t *testing.T) {
	p := &page{}
	p.add("b_total", "counter", "Second.", map[string]string{"pod": "x\"\\\n", "app": "1"}, 2)
	p.add("a", "gauge", "First.", nil, 0.5)
	p.addAt("b_total", "counter", "Second.", map[string]string{"pod": "y", "app": "1"}, 3, time.UnixMilli(1500))
	p.add("broken", "gauge", "Not said.", map[string]string{"pod": "\xff"}, 1)
	w := httptest.NewRecorder()
	if err := p.write(w, httptest.NewRequest("GET", "/metrics", nil)); err != nil {
		t.Fatal(err)
	}
	want := `# HELP a First.
# TYPE a gauge
a 0.5
# HELP b_total Second.
# TYPE b_total counter
b_total{app="1",pod="x\"\\\n"} 2
b_total{app="1",pod="y"} 3 1500
`
	if got := w.Body.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
