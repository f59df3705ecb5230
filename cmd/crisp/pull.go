package main

import (
	"fmt"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func pullCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "pull IMAGE", Short: "pull an image"}
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) != 1 {
			return usageError("pull takes one image")
		}
		_, service, err := c.connect()
		if err != nil {
			return err
		}
		ref, err := service.PullImage(c.ctx, &cri.ImageSpec{Image: rest[0], UserSpecifiedImage: rest[0]}, nil, nil)
		if err != nil {
			return fmt.Errorf("pull %s: %w", rest[0], criruntime.Fault(err))
		}
		fmt.Fprintln(c.stdout, ref)
		return nil
	}
	return cmd
}
