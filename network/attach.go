package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
)

// Attach brings up the loopback device in p.NetNS and adds p to the network. If that fails, or
// ctx ends, it undoes its work by DEL of the plugins that have begun, on its own context. If DEL
// fails too, p stays recorded as attached, and Detach tries again.
//
// The error is fault.Unavailable if there is no network to attach to, fault.Exists if p is
// attached (CNI allows one ADD for each DEL), and fault.Invalid if the plugins have created no
// device for one of p.Sysctls.
func (n *Network) Attach(ctx context.Context, p Pod) (_ Result, err error) {
	if p.ID == "" || p.NetNS == "" {
		return Result{}, fault.Invalid.Errorf("attach sandbox %q: it has no ID or no network namespace", p.ID)
	}
	c, err := n.usable()
	if err != nil {
		return Result{}, err
	}
	var steps undo.Stack
	defer steps.RunIf(&err) // under the lock

	ctx, unlock, err := n.lock(ctx, p.ID)
	if err != nil {
		return Result{}, err
	}
	steps.Add("lock", func() error { unlock(); return nil })
	switch _, err := n.loadAttachment(p.ID); {
	case err == nil:
		return Result{}, fault.Exists.Errorf("sandbox %s is attached to a network", p.ID)
	case !errors.Is(err, fs.ErrNotExist):
		return Result{}, err
	}

	if err := loopbackUp(p.NetNS); err != nil {
		return Result{}, err
	}
	a := n.newAttachment(c, p)
	if err := n.markUsed(c.list.Name); err != nil {
		return Result{}, err
	}
	if err := n.saveAttachment(a); err != nil {
		return Result{}, err
	}
	steps.AddContext(ctx, "attachment", func(ctx context.Context) error { return n.del(ctx, a) })
	added, err := n.cni.AddNetworkList(ctx, c.list, a.runtime())
	if err != nil {
		begun := workOf(ctx).begun
		a.Begun = &begun
		return Result{}, errors.Join(fmt.Errorf("network %s: %w", c.list.Name, err), n.saveAttachment(a))
	}
	res, err := resultOf(added)
	if err != nil {
		return Result{}, fmt.Errorf("network %s: %w", c.list.Name, err)
	}
	if err := setSysctls(p); err != nil {
		return Result{}, err
	}
	unlock()
	return res, nil
}

// resultOf reads the addresses of the pod from the plugins' result. A result
// without an address is an error: the kubelet would recreate such a pod again and again.
func resultOf(r types.Result) (Result, error) {
	// Every version of the result converts to the newest type.
	full, err := types100.NewResultFromResult(r)
	if err != nil {
		return Result{}, fmt.Errorf("result of the plugins: %w", err)
	}
	var res Result
	for _, c := range full.IPs {
		ip, ok := netip.AddrFromSlice(c.Address.IP)
		if !ok {
			return Result{}, fmt.Errorf("result of the plugins: address %v", c.Address.IP)
		}
		if ofPod(full.Interfaces, c.Interface) {
			res.IPs = append(res.IPs, ip.Unmap())
		}
	}
	if len(res.IPs) == 0 {
		return Result{}, fmt.Errorf("the plugins gave %s no address", ifName)
	}
	return res, nil
}

// ofPod reports whether an address belongs to the pod's interface. CNI: the
// index "interface" of an address is optional; without it, the address is the
// pod's.
func ofPod(all []*types100.Interface, index *int) bool {
	if index == nil || *index < 0 || *index >= len(all) {
		return true
	}
	return all[*index].Name == ifName && all[*index].Sandbox != ""
}
