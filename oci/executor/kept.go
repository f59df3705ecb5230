package executor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/crisp-cri/crisp/internal/unixsock"
)

// lockName is the lock of a state directory's executor.
const lockName = "executor.lock"

// socketFiles are the modes for the socket and its directory. Others may pass through the state
// directory, as crispd creates it.
var socketFiles = unixsock.Options{Mode: 0o600, Dir: 0o711}

// A kept is what the executor restores if somebody removes it. Without its socket no crispd
// would reach it, without its lock a second executor could be started for the same containers.
// lock and listener are replaced inside the gate.
type kept struct {
	state, own *unixsock.Dir // the state directory, and libcontainer's in it
	lock       *os.File
	listener   *unixsock.Listener
}

func makeDirs(state string) (k kept, err error) {
	if k.state, err = unixsock.MakeDir(state, 0o711); err == nil {
		k.own, err = unixsock.MakeDir(filepath.Join(state, "executor"), 0o700)
	}
	return k, err
}

// watchFiles checks the files until the executor is about to end.
func (x *Executor) watchFiles() {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-x.table.quit
		cancel()
	}()
	unixsock.Watch(ctx, x.log, x.lookAtFiles)
}

// lookAtFiles restores missing files. If another process has the lock, as a crispd has for a
// moment before it starts an executor, the socket may be about to become another's.
func (x *Executor) lookAtFiles() (again []string, err error) {
	x.gate.enter() // an upgrade hands over the current lock and socket
	defer x.gate.leave()
	for _, dir := range []*unixsock.Dir{x.kept.state, x.kept.own} {
		if _, err := dir.Look(); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(x.opts.State, lockName)
	lock, err := flock.Renew(x.kept.lock, path)
	if err != nil {
		return nil, err
	}
	if lock != x.kept.lock {
		x.kept.lock.Close()
		x.kept.lock = lock
		again = append(again, path)
	}
	hands, err := x.hands.look()
	sockets, serr := unixsock.LookAll(x.kept.listener)
	return slices.Concat(again, hands, sockets), errors.Join(err, serr)
}
