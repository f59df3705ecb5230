package oci

import (
	"context"
	"os"

	"github.com/crisp-cri/crisp/oci/wire"
)

// An ExecutorConn is a connection to the executor, in the language of package wire.
// *wire.Client is one; the other is in ocitest, for tests.
type ExecutorConn interface {
	// Call asks for method and waits. The files sent stay the caller's, those
	// received become the caller's. fault.Unavailable = the connection was lost,
	// and whether the work was done is unknown.
	Call(ctx context.Context, method string, req, reply any, send ...*os.File) ([]*os.File, error)
	// Events is closed when the connection has ended.
	Events() <-chan wire.Event
	Close() error
}
