package network

import (
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

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
