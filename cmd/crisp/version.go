package main

import (
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/crisp-cri/crisp/agent/crix"
)

// version is set by the linker; a plain "go build" leaves it to build info.
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

// runVersion prints our own version even if no runtime answers, which is then
// the failure.
func runVersion(c *cli, args []string) error {
	var output string
	fs := c.flags("version")
	fs.StringVar(&output, "o", "", "`form`: json")
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 || output != "" && output != "json" {
		return usageError("version takes no argument but -o json")
	}
	versions := map[string]string{"crisp": crispVersion()}
	service, _, err := c.connect()
	if err == nil {
		v, rpcErr := service.Version(c.ctx, "")
		err = crix.Fault(rpcErr)
		versions["runtime"], versions["runtimeVersion"], versions["cri"] = v.GetRuntimeName(), v.GetRuntimeVersion(), v.GetRuntimeApiVersion()
	}
	if output == "json" {
		data, jsonErr := json.MarshalIndent(versions, "", "    ")
		if jsonErr != nil {
			return jsonErr
		}
		fmt.Fprintln(c.stdout, string(data))
		return err
	}
	fmt.Fprintf(c.stdout, "crisp    %s\n", versions["crisp"])
	if err == nil {
		fmt.Fprintf(c.stdout, "runtime  %s %s (CRI %s)\n", versions["runtime"], versions["runtimeVersion"], versions["cri"])
	}
	return err
}
