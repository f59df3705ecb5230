package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// generateCommand prints a unit that keeps the agent running, or runs it for one
// manifest directory.
func generateCommand(c *cli) *cobra.Command {
	var manifests string
	cmd := &cobra.Command{Use: "generate systemd", Short: "print a unit for the agent", ValidArgs: []string{"systemd"}}
	fs := cmd.Flags()
	fs.StringVar(&manifests, "manifests", "/etc/crisp/pods", "`directory` of the manifests")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) != 1 || rest[0] != "systemd" {
			return usageError("generate takes: systemd")
		}
		program, err := os.Executable()
		if err != nil {
			return err
		}
		for _, path := range []string{manifests, program, c.agentRoot} {
			if !filepath.IsAbs(path) || strings.ContainsAny(path, " \"\\%") {
				return usageError("%q cannot stand in a unit: want an absolute path without blanks", path)
			}
		}
		_, err = fmt.Fprintf(c.stdout, `[Unit]
Description=crisp agent: runs the pods of %[2]s
Wants=crisp.service network-online.target
After=crisp.service network-online.target
# Whatever keeps it from starting, it is there again soon after that is mended.
StartLimitIntervalSec=0

[Service]
ExecStart=%[1]s --runtime-endpoint %[4]s agent --manifests %[2]s --root %[3]s
Restart=always
RestartSec=2
# Containers are the runtime's: they run on without the agent.
KillMode=process
Delegate=yes

[Install]
WantedBy=multi-user.target
`, program, manifests, c.agentRoot, c.endpoint)
		return err
	}
	return cmd
}
