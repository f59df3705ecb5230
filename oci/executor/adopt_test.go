package executor_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A failed adopt leaves no descriptor open: crispd repeats it until it succeeds.
func TestAdoptThatFailsLeavesNothingOpen(t *testing.T) {
	n := start(t)
	b := n.run([]string{"count", "-1", "1ms"})
	n.crash(func() {})
	open := func() int { return n.open("") }
	// O_NONBLOCK cannot be set on a descriptor that cannot be read (open(2)).
	fd, err := unix.Open(b.log, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	bad := os.NewFile(uintptr(fd), wire.FDStderr)
	defer bad.Close()
	var send []*os.File
	for _, f := range b.fds {
		if f.Name() != wire.FDStderr {
			send = append(send, f)
		}
	}
	req := wire.AdoptRequest{Settings: wire.Settings{ID: b.id, LogPath: b.log, ExitPath: b.exit}, RunReply: b.reply}
	before := 0
	for try := range 20 {
		_, err := n.client.Call(t.Context(), wire.MethodAdopt, req, nil, append(send, bad)...)
		if !errors.Is(err, unix.EBADF) && !errors.Is(err, fault.Internal) {
			t.Fatalf("adopted with a descriptor that cannot be read: %v", err)
		}
		if try == 0 {
			before = open() // the first adopt has opened the executor's permanent files
		}
	}
	if after := open(); after > before {
		t.Errorf("the executor had %d descriptors, and has %d", before, after)
	}
	b.adopt()
	b.says("5\n")
}

// An OOM kill that the previous executor has reported is not reported again. One that
// happened while no executor ran is.
func TestAdoptTellsEachKillOnce(t *testing.T) {
	n := start(t)
	eats := func(first ...string) wire.ExecRequest {
		return wire.ExecRequest{Process: process(append(first, "eat", "200")...)}
	}
	reported, between := n.run([]string{"sleep", "for-ever"}, withMemory(32<<20)), n.run([]string{"sleep", "for-ever"}, withMemory(32<<20))
	for _, b := range []*box{reported, between} {
		if code := b.exec(eats()).wait(); code != 137 {
			t.Errorf("exec ended with %d", code)
		}
		if b.reportsOOM(); b.kills != 1 {
			t.Errorf("%d kills were reported", b.kills)
		}
	}
	e := between.exec(eats("await", "/tmp/go"))
	n.crash(func() {
		between.touch("tmp/go")
		eventually(t, func() bool { return !alive(e.Pid) }, "it is not killed")
	})
	for _, b := range []*box{reported, between} {
		b.adopt()
		b.signal(unix.SIGKILL, true)
		b.wait()
	}
	for len(n.ooms) > 0 { // reported before the exits
		if e := <-n.ooms; e.ID != between.id || e.Kills != 2 {
			t.Errorf("%+v was reported", e)
		} else {
			between.kills = e.Kills
		}
	}
	if between.kills != 2 {
		t.Error("the kill that had not been reported is not reported")
	}
}
