package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
)

// doctorCommand checks what pods need on this node.
func doctorCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "doctor", Args: takesNone(""), Short: "check what pods need from this node"}
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		bad := 0
		check := func(what, wrong, hint string) {
			word := "ok"
			if wrong != "" {
				word = wrong
				bad++
				if hint != "" {
					word += "\n            " + hint
				}
			}
			fmt.Fprintf(c.stdout, "%-10s  %s\n", what, word)
		}
		r := c.report()
		check("runtime", r.Runtime.Error, "start crispd, or give --runtime-endpoint")
		for _, cond := range r.Runtime.Conditions {
			wrong := ""
			if !cond.Status {
				wrong = strings.TrimSpace(cond.Reason + " " + cond.Message)
			}
			check(cond.Type, wrong, "")
		}
		health := r.Agent.Health
		if health == "ok" {
			health = ""
		}
		check("agent", health, "start crisp agent, or set CRISP_AGENT_ROOT")
		_, err := os.Stat("/sys/fs/cgroup")
		check("cgroups", textOfError(err), "mount the cgroup file system")
		_, err = exec.LookPath("nft")
		check("nft", textOfError(err), "install nftables: host ports need it")
		const forwarding = "/proc/sys/net/ipv4/ip_forward"
		data, err := os.ReadFile(forwarding)
		if err == nil && strings.TrimSpace(string(data)) != "1" {
			err = errors.New(forwarding + " is not 1")
		}
		check("forwarding", textOfError(err), "pods reach nothing beyond the node without")
		for _, s := range r.Sources {
			for _, f := range s.Files {
				if f.Error != "" {
					check("manifest", f.Error, "")
				}
			}
		}
		if bad > 0 {
			return &exitError{code: exitFailure}
		}
		return nil
	}
	return cmd
}

func textOfError(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
