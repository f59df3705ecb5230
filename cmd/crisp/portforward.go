package main

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func portForwardCommand(c *cli) *cobra.Command {
	var namespace, address string
	cmd := &cobra.Command{Use: "port-forward POD [LOCAL:]PORT...", Args: takes(2, many, "port-forward takes the name of a pod and ports: web 8080:80"), Short: "forward local ports to a pod", ValidArgsFunction: c.completePod}
	fs := cmd.Flags()
	namespaceFlag(fs, &namespace)
	fs.StringVar(&address, "address", "localhost", "comma-separated `addresses` to listen on")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		runtime, f, err := c.connectToPod(namespace, args[0])
		if err != nil {
			return err
		}
		if len(f.Have.Sandboxes) == 0 || !f.Have.Sandboxes[0].Ready {
			return fault.WrongState.Errorf("pod %s does not run", f.Pod.Name)
		}
		resp, err := runtime.PortForward(c.ctx, &cri.PortForwardRequest{PodSandboxId: f.Have.Sandboxes[0].ID})
		if err != nil {
			return criruntime.Fault(err)
		}
		return c.forward(resp.Url, strings.Split(address, ","), args[1:])
	}
	return cmd
}

// forward forwards local ports until it is interrupted.
func (c *cli) forward(to string, addresses, ports []string) error {
	u, err := url.Parse(to)
	if err != nil {
		return err
	}
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		return err
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	ready := make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, addresses, ports, c.ctx.Done(), ready, c.stdout, c.stderr)
	if err != nil {
		return usageError("%v", err)
	}
	if err := forwarder.ForwardPorts(); err != nil && c.ctx.Err() == nil {
		return err
	}
	return nil
}
