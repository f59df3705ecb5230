package main

import (
	"errors"
	"io"
	"net/http"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
)

// pageCommand prints a URL that opens the agent's page in a browser, once. The agent issues it to
// any client of its socket.
func pageCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "page", Args: takesNone(""), Short: "print a link that opens the agent's page in a browser once"}
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		resp, err := c.ask(http.MethodPost, "/crisp/v1/page", nil, nil)
		if errors.Is(err, fault.NotFound) {
			return fault.NotFound.Errorf("the agent has no page: it has one with --page and --listen 127.0.0.1:PORT")
		}
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(c.stdout, resp.Body)
		return err
	}
	return cmd
}
