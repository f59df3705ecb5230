package main

import (
	"fmt"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func rmiCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "rmi IMAGE...", Short: "remove images", ValidArgsFunction: c.completeImages}
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) == 0 {
			return usageError("rmi takes the images to remove")
		}
		_, service, err := c.connect()
		if err != nil {
			return err
		}
		for _, name := range rest {
			resp, err := service.ImageStatus(c.ctx, &cri.ImageSpec{Image: name}, false)
			if err != nil {
				return criruntime.Fault(err)
			}
			if resp.GetImage() == nil { // CRI's RemoveImage would say nothing
				return fault.NotFound.Errorf("there is no image %s", name)
			}
			if err := service.RemoveImage(c.ctx, &cri.ImageSpec{Image: name}); err != nil {
				return fmt.Errorf("remove image %s: %w", name, criruntime.Fault(err))
			}
			fmt.Fprintln(c.stdout, name)
		}
		return nil
	}
	return cmd
}
