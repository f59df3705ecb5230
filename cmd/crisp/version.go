package main

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/spf13/cobra"
)

// version is set by the linker. With a plain "go build" it is empty, and the version comes from the
// build info.
var version = ""

func crispVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// versionCommand prints our own version even if the runtime does not answer, which is then an
// error.
func versionCommand(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "version", Args: takesNone(""), Short: "print the versions of crisp and of the runtime"}
	fs := cmd.Flags()
	outputFlag(fs, &output, "json")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		versions := map[string]string{"crisp": crispVersion()}
		service, _, err := c.connect()
		if err == nil {
			v, rpcErr := service.Version(c.ctx, "")
			err = criruntime.Fault(rpcErr)
			versions["runtime"], versions["runtimeVersion"], versions["cri"] = v.GetRuntimeName(), v.GetRuntimeVersion(), v.GetRuntimeApiVersion()
		}
		if output == "json" {
			return cmp.Or(c.printValue(versions, output), err)
		}
		fmt.Fprintf(c.stdout, "crisp    %s\n", versions["crisp"])
		if err == nil {
			fmt.Fprintf(c.stdout, "runtime  %s %s (CRI %s)\n", versions["runtime"], versions["runtimeVersion"], versions["cri"])
		}
		return err
	}
	return cmd
}
