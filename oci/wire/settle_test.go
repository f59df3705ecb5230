package wire_test

import (
	"context"
	"os"
	"sync/atomic"
	"testing"

	"github.com/crisp-cri/crisp/oci/wire"
)

// A client that is killed during a call leaves the call behind. Its successor must see that
// call's effect: otherwise a container that was being started is taken for one that never
// ran, and is started twice.
func TestSettleWaitsForACallLeftBehind(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	var started atomic.Bool
	path, first := serve(t, handler{
		"run": func(context.Context, *wire.Conn, *wire.Call) (any, []*os.File, error) {
			close(begun)
			<-finish // even without a caller
			started.Store(true)
			return nil, nil, nil
		},
		"list": func(ctx context.Context, from *wire.Conn, _ *wire.Call) (any, []*os.File, error) {
			from.Settle(ctx)
			return started.Load(), nil, nil
		},
	})
	go first.Call(context.Background(), "run", nil, nil)
	<-begun
	first.Close()

	second, err := wire.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	listed := make(chan error, 1)
	var seen bool
	go func() {
		_, err := second.Call(t.Context(), "list", nil, &seen)
		listed <- err
	}()
	close(finish)
	if err := <-listed; err != nil {
		t.Fatal(err)
	}
	if !seen {
		t.Error("the list was made before the call of the dead client was done")
	}
}

// Settle does not wait for the calls of a live client.
func TestSettleDoesNotWaitForTheLiving(t *testing.T) {
	block := make(chan struct{})
	begun := make(chan struct{})
	path, first := serve(t, handler{
		"wait": func(context.Context, *wire.Conn, *wire.Call) (any, []*os.File, error) {
			close(begun)
			<-block
			return nil, nil, nil
		},
		"list": func(ctx context.Context, from *wire.Conn, _ *wire.Call) (any, []*os.File, error) {
			from.Settle(ctx)
			return nil, nil, nil
		},
	})
	waited := make(chan struct{})
	go func() {
		first.Call(context.Background(), "wait", nil, nil)
		close(waited)
	}()
	<-begun
	second, err := wire.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if _, err := second.Call(t.Context(), "list", nil, nil); err != nil {
		t.Fatal(err)
	}
	close(block)
	<-waited
}
