package stdio

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/logread"
	"github.com/crisp-cri/crisp/oci/executor/gate"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A \r at the end of a terminal's output is held back, because a \n may follow; when none
// does, it is logged.
func TestLastReturnOfATerminal(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	s := wire.Settings{ID: "a", TTY: true}
	log, err := crilog.Open(path, 0, crilog.Limit{}, func(error, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours, err := pipe("pty", true)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	io := NewStreams(s, log, nil, nil, nil, ours)
	io.Start(new(gate.Gate), buffersOf(t, dir), slog.New(slog.DiscardHandler))
	if _, err := theirs.WriteString("line\r\n 50 %\r100 %\r"); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	<-io.outs[0].done
	log.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(string(data)) {
		r, err := logread.Parse([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		got.Write(r.Content)
		got.WriteByte('|')
	}
	if want := "line| 50 %\r100 %|\r|"; got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}
