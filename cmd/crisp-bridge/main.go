// Command crisp-bridge is the CNI plugin of crispd's default network as a program, for other
// runtimes and for inspecting what crispd has set up. crispd itself calls package bridge and
// does not need the program.
package main

import (
	"context"
	"os"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/crisp-cri/crisp/network/bridge"
)

func main() {
	var plugin bridge.Plugin
	carryOut := func(command string) func(*skel.CmdArgs) error {
		return func(a *skel.CmdArgs) error {
			out, err := plugin.Call(context.Background(), command, a)
			if err != nil {
				return err
			}
			_, err = os.Stdout.Write(out)
			return err
		}
	}
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add: carryOut("ADD"), Del: carryOut("DEL"), Check: carryOut("CHECK"),
		GC: carryOut("GC"), Status: carryOut("STATUS"),
	}, bridge.Supported, "CNI plugin crisp-bridge: the default network of crispd")
}
