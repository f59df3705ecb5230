package api_test

import (
	"testing"

	"github.com/crisp-cri/crisp/apiserver/api"
)

// Integers above 2^53, which a float64 cannot represent, keep their value.
func TestEditMetadataKeepsIntegers(t *testing.T) {
	got, err := api.EditMetadata([]byte(`{"metadata":{"generation":9007199254740993},"spec":{"n":9007199254740993}}`),
		func(m map[string]any) { m["name"] = "x" })
	if want := `{"metadata":{"generation":9007199254740993,"name":"x"},"spec":{"n":9007199254740993}}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}
