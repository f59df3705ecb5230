package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
)

// doctorCommand checks what pods need of this node.
func doctorCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "doctor", Args: takesNone(""), Short: "check what pods need of this node"}
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		bad := 0
		check := func(what string, err error, hint string) {
			word := "ok"
			if err != nil {
				word = err.Error()
				bad++
				if hint != "" {
					word += "\n            " + hint
				}
			}
			fmt.Fprintf(c.stdout, "%-10s  %s\n", what, word)
		}
		r := c.report()
		fail := func(text string) error {
			if text == "" {
				return nil
			}
			return fmt.Errorf("%s", text)
		}
		check("runtime", fail(r.Runtime.Error), "start crispd, or give --runtime-endpoint")
		for _, cond := range r.Runtime.Conditions {
			text := ""
			if !cond.Status {
				text = strings.TrimSpace(cond.Reason + " " + cond.Message)
			}
			check(cond.Type, fail(text), "")
		}
		health := r.Agent.Health
		if health == "ok" {
			health = ""
		}
		check("agent", fail(health), "start crisp agent, or set CRISP_AGENT_ROOT")
		_, err := os.Stat("/sys/fs/cgroup")
		check("cgroups", err, "mount the cgroup file system")
		_, err = exec.LookPath("nft")
		check("nft", err, "install nftables: host ports need it")
		for _, path := range []string{"/proc/sys/net/ipv4/ip_forward"} {
			data, err := os.ReadFile(path)
			if err == nil && strings.TrimSpace(string(data)) != "1" {
				err = fmt.Errorf("%s is not 1", path)
			}
			check("forwarding", err, "pods reach nothing beyond the node without")
		}
		for _, s := range r.Sources {
			for _, f := range s.Files {
				if f.Error != "" {
					check("manifest", fail(f.Error), "")
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
