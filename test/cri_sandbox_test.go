package test

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxCmd is:
//
//	sandbox run NAME [OPTION...]    handler=NAME, host-network, share-pid, userns=HOST:LENGTH, hostport=HOST:CONTAINER, sysctl=K=V, attempt=N, cgroup-parent=P
//	sandbox stop|rm|status|stats|metrics NAME
//	sandbox ls
func (n *node) sandboxCmd(ts *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if args[0] == "ls" {
		resp, err := n.runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		for _, sb := range resp.Items {
			fmt.Fprintf(ts.Stdout(), "%s %s\n", sb.Metadata.Name, strings.TrimPrefix(sb.State.String(), "SANDBOX_"))
		}
		return nil
	}
	if len(args) < 2 {
		return errUsage
	}
	name := args[1]
	id := n.ids[name]
	if id == "" {
		id = name
	}
	switch args[0] {
	case "run":
		handler, options := "", args[2:]
		if len(options) > 0 && strings.HasPrefix(options[0], "handler=") {
			handler, options = strings.TrimPrefix(options[0], "handler="), options[1:]
		}
		config, err := n.sandboxConfig(name, options)
		if err != nil {
			return err
		}
		resp, err := n.runtime().RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		if err != nil {
			return err
		}
		n.ids[name], n.sandboxes[name] = resp.PodSandboxId, config
		fmt.Fprintln(ts.Stdout(), resp.PodSandboxId)
		return nil
	case "stop":
		_, err := n.runtime().StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return err
	case "rm":
		_, err := n.runtime().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	case "stats":
		return n.stats(ctx, ts, id)
	case "metrics":
		return n.metrics(ctx, ts, id)
	case "status":
		resp, err := n.runtime().PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
		if err != nil {
			return err
		}
		fmt.Fprintf(ts.Stdout(), "state: %s\nip: %s\n", strings.ToLower(strings.TrimPrefix(resp.Status.State.String(), "SANDBOX_")), resp.Status.GetNetwork().GetIp())
		ts.Setenv("IP", resp.Status.GetNetwork().GetIp())
		return nil
	}
	return errUsage
}

func (n *node) sandboxConfig(name string, options []string) (*cri.PodSandboxConfig, error) {
	c := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "test", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: filepath.Join(n.dir, "logs", name),
		Labels:       map[string]string{"name": name},
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
		}},
	}
	ns := c.Linux.SecurityContext.NamespaceOptions
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "host-network":
			ns.Network = cri.NamespaceMode_NODE
			c.Hostname = ""
		case "share-pid":
			ns.Pid = cri.NamespaceMode_POD
		case "userns":
			host, length, _ := strings.Cut(value, ":")
			h, err := strconv.ParseUint(host, 10, 32)
			if err != nil {
				return nil, err
			}
			l, err := strconv.ParseUint(length, 10, 32)
			if err != nil {
				return nil, err
			}
			m := []*cri.IDMapping{{HostId: uint32(h), Length: uint32(l)}}
			ns.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: m, Gids: m}
		case "host-pid":
			ns.Pid = cri.NamespaceMode_NODE
		case "hostport":
			host, inside, _ := strings.Cut(value, ":")
			h, err := strconv.Atoi(host)
			if err != nil {
				return nil, err
			}
			p, err := strconv.Atoi(inside)
			if err != nil {
				return nil, err
			}
			c.PortMappings = append(c.PortMappings, &cri.PortMapping{HostPort: int32(h), ContainerPort: int32(p)})
		case "sysctl":
			k, v, _ := strings.Cut(value, "=")
			if c.Linux.Sysctls == nil {
				c.Linux.Sysctls = map[string]string{}
			}
			c.Linux.Sysctls[k] = v
		case "attempt":
			a, err := strconv.Atoi(value)
			if err != nil {
				return nil, err
			}
			c.Metadata.Attempt = uint32(a)
		case "name":
			c.Metadata.Name, c.Metadata.Uid = value, "uid-"+value
		case "cgroup-parent":
			c.Linux.CgroupParent = value
		case "config":
			if err := n.merge(c, value); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("unknown option %q", o)
		}
	}
	return c, nil
}
