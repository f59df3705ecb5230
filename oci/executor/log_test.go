package executor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/oci/wire"
)

// During an upgrade the next program already has the number of the log's descriptor: if the
// log were reopened meanwhile, it would get that of a closed file.
func TestReopenLogWaitsForTheUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	synctest.Test(t, func(t *testing.T) {
		log, err := crilog.Open(path, 0, func(error, int64) {})
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		s := settings{Settings: wire.Settings{ID: "a"}}
		x := &Executor{table: newTable()}
		x.table.add(&container{settings: s, phase: running, io: newStdio(s, log, nil, nil, nil, nil)})
		if !x.gate.close(time.Minute, time.Minute) {
			t.Fatal("the gate does not shut")
		}
		saved := log.File()
		reopened := make(chan error, 1)
		go func() { reopened <- x.reopenLog("a") }()
		synctest.Wait()
		if log.File() != saved {
			t.Error("the log was reopened while the gate was shut")
		}
		x.gate.open()
		if err := <-reopened; err != nil {
			t.Error(err)
		}
		if log.File() == saved {
			t.Error("the log was not reopened")
		}
	})
}

// A \r at the end of a terminal's output is held back, because a \n may follow; when none
// does, it is logged.
func TestLastReturnOfATerminal(t *testing.T) {
	x := newExecutor(t)
	path := filepath.Join(t.TempDir(), "0.log")
	s := settings{Settings: wire.Settings{ID: "a", TTY: true}}
	log, err := crilog.Open(path, 0, func(error, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours, err := pipe("pty", true)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	io := newStdio(s, log, nil, nil, nil, ours)
	io.start(&x.gate, x.hands, x.log)
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
		r, err := crilog.Parse([]byte(line))
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
