package criruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/crisp-cri/crisp/agent/httpget"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
)

// hook runs a postStart or preStop handler in or against the container id of c. Only ctx limits
// its time.
func (d *Driver) hook(ctx context.Context, pod *v1.Pod, c *v1.Container, id string, h *v1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		_, _, err := d.runtime.ExecSync(ctx, id, h.Exec.Command, 0)
		return Fault(err)
	case h.HTTPGet != nil:
		return d.httpHook(ctx, pod, c, h.HTTPGet)
	case h.Sleep != nil:
		periodic.Pause(ctx, podsync.Seconds(h.Sleep.Seconds))
		return ctx.Err()
	}
	return errors.New("handler has no action")
}

// httpHook makes one request and ignores the response. A server that answers an HTTPS request
// with HTTP is asked again by HTTP.
func (d *Driver) httpHook(ctx context.Context, pod *v1.Pod, c *v1.Container, a *v1.HTTPGetAction) error {
	host := a.Host
	if host == "" {
		ips, err := d.addresses(ctx, pod)
		if err != nil {
			return err
		}
		if len(ips) == 0 {
			return fmt.Errorf("pod %s/%s has no address", pod.Namespace, pod.Name)
		}
		host = ips[0]
	}
	req, err := httpget.Request(a, c, host, "lifecycle")
	if err != nil {
		return err
	}
	client := httpget.Client()
	resp, err := client.Do(req.WithContext(ctx))
	if err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		again := req.Clone(ctx)
		again.URL.Scheme = "http"
		again.Header.Del("Authorization")
		resp, err = client.Do(again)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 10<<10)) // so that the server is not cut off
	return err
}

// addresses returns those of the pod's sandbox, or the node's with its network.
func (d *Driver) addresses(ctx context.Context, pod *v1.Pod) ([]string, error) {
	have, err := d.observeSandboxes(ctx, pod)
	if err != nil {
		return nil, err
	}
	for _, sb := range have {
		if sb.UID != string(pod.UID) || !sb.Ready {
			continue
		}
		if sb.HostNetwork {
			return d.o.Host.IPs(), nil
		}
		return sb.IPs, nil
	}
	return nil, nil
}
