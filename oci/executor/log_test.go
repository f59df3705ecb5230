package executor

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/oci/executor/stdio"
	"github.com/crisp-cri/crisp/oci/wire"
)

// During an upgrade the next program already has the number of the log's descriptor: if the
// log were reopened meanwhile, it would get that of a closed file.
func TestReopenLogWaitsForTheUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	synctest.Test(t, func(t *testing.T) {
		log, err := crilog.Open(path, 0, crilog.Limit{}, func(error, int64) {})
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		s := settings{Settings: wire.Settings{ID: "a"}}
		x := &Executor{table: newTable()}
		x.table.containers["a"] = &container{settings: s, phase: running, io: stdio.NewStreams(s.Settings, log, nil, nil, nil, nil)}
		if !x.gate.Close(time.Minute, time.Minute) {
			t.Fatal("the gate does not shut")
		}
		saved := log.File()
		reopened := make(chan error, 1)
		go func() { reopened <- x.reopenLog("a") }()
		synctest.Wait()
		if log.File() != saved {
			t.Error("the log was reopened while the gate was shut")
		}
		x.gate.Open()
		if err := <-reopened; err != nil {
			t.Error(err)
		}
		if log.File() == saved {
			t.Error("the log was not reopened")
		}
	})
}
