package network

import "context"

// Attach brings up the loopback device in p.NetNS and adds p to the network.
// If that fails, what was done is undone with DEL on a context of its own.
func (n *Network) Attach(ctx context.Context, p Pod) (Result, error) { return Result{}, nil }

// Detach takes p from the network: with the configuration that it was attached
// with, whether or not its namespace is still there. Detaching a pod that is not
// attached is no error.
func (n *Network) Detach(ctx context.Context, p Pod) error { return nil }

// Check asks the plugins whether p is still attached as it was.
func (n *Network) Check(ctx context.Context, p Pod) error { return nil }

// Status is nil if pods can be attached (CRI's condition NetworkReady). The text
// of the error is made for the message of that condition.
func (n *Network) Status() error { return nil }

// GC detaches whatever is attached and not in keep, a list of Pod.ID.
func (n *Network) GC(ctx context.Context, keep []string) error { return nil }
