package main

import (
	"strings"
	"testing"
)

// The debug socket belongs to the state directory: an unknown word is an error,
// and nothing is sent.
func TestDebugWords(t *testing.T) {
	var out strings.Builder
	for _, args := range [][]string{{"debug"}, {"debug", "nonsense"}, {"debug", "heap", "more"}} {
		if err := run(args, &out); err == nil {
			t.Errorf("%q succeeded", args)
		}
	}
	if err := run([]string{"debug", "heap", "--state", t.TempDir()}, &out); err == nil || !strings.Contains(err.Error(), "debug.sock") {
		t.Errorf("without a crispd: %v", err)
	}
}
