package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (n *node) runtime() cri.RuntimeServiceClient { return cri.NewRuntimeServiceClient(n.conn) }
func (n *node) images() cri.ImageServiceClient    { return cri.NewImageServiceClient(n.conn) }

// callTimeout is the kubelet's for most calls.
const callTimeout = 2 * time.Minute

// imageCmd is:
//
//	image load NAME            testbin's image from an archive, under that name
//	image pull REF [NAMESPACE | USER PASSWORD]
//	image rm REF | status REF | ls
func (n *node) imageCmd(ts *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	switch verb, args := args[0], args[1:]; {
	case verb == "load" && len(args) == 0:
		return ts.Exec(filepath.Join(n.binaries.dir, "crisp"), "image", "load", "-i", n.archive)
	case verb == "pull" && len(args) >= 1 && len(args) <= 3:
		req := &cri.PullImageRequest{Image: &cri.ImageSpec{Image: args[0]}}
		if len(args) == 2 {
			req.SandboxConfig = &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Namespace: args[1]}}
		}
		if len(args) == 3 {
			req.Auth = &cri.AuthConfig{Username: args[1], Password: args[2]}
		}
		resp, err := n.images().PullImage(ctx, req)
		if err != nil {
			return err
		}
		fmt.Fprintln(ts.Stdout(), resp.ImageRef)
		return nil
	case verb == "rm" && len(args) == 1:
		_, err := n.images().RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: args[0]}})
		return err
	case verb == "status" && len(args) == 1:
		resp, err := n.images().ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: args[0]}})
		if err != nil {
			return err
		}
		if resp.Image == nil {
			return fmt.Errorf("no image %s", args[0])
		}
		printImage(ts, resp.Image)
		return nil
	case verb == "ls" && len(args) == 0:
		resp, err := n.images().ListImages(ctx, &cri.ListImagesRequest{})
		if err != nil {
			return err
		}
		for _, i := range resp.Images {
			printImage(ts, i)
		}
		return nil
	}
	return errUsage
}

func printImage(ts *testscript.TestScript, i *cri.Image) {
	fmt.Fprintf(ts.Stdout(), "%s tags=%v digests=%v\n", i.Id, i.RepoTags, i.RepoDigests)
}

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

// containerCmd is:
//
//	container create|run SANDBOX NAME [OPTION...] -- COMMAND...
//	container start|stop|kill|rm|status|reopen NAME
//	container update NAME FIELD=VALUE...
//	container limits NAME                   of the status, and of the kernel
//	container exec NAME -- COMMAND...       its output is the command's, an exit code ≠ 0 an error
//	container exec-timeout NAME SECONDS -- COMMAND...
//	container logs NAME                     the log's text, stdout and stderr
//	container wait NAME                     until it is exited
//	container await NAME TEXT               until its log has the text
//	container ls
//
// OPTION: config=FILE (JSON of a ContainerConfig, merged into it), image=REF, mount=HOST:CONTAINER[:ro], env=K=V, memory=MIB, stdin, tty, user=UID, name=NAME.
// COMMAND's first word "testbin" is /testbin in the image.
func (n *node) containerCmd(ts *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	verb, args := args[0], args[1:]
	switch {
	case (verb == "create" || verb == "run") && len(args) >= 2:
		if err := n.createContainer(ctx, args); err != nil {
			return err
		}
		ts.Setenv("ID_"+args[1], n.ids[args[1]])
		if verb == "create" {
			return nil
		}
		_, err := n.runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: n.ids[args[1]]})
		return err
	case verb == "ls" && len(args) == 0:
		resp, err := n.runtime().ListContainers(ctx, &cri.ListContainersRequest{})
		if err != nil {
			return err
		}
		for _, c := range resp.Containers {
			fmt.Fprintf(ts.Stdout(), "%s %s\n", c.Metadata.Name, strings.TrimPrefix(c.State.String(), "CONTAINER_"))
		}
		return nil
	case len(args) == 0:
		return errUsage
	}
	name := args[0]
	id := n.ids[name]
	if id == "" {
		id = name
	}
	switch verb {
	case "start":
		_, err := n.runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id})
		return err
	case "stop", "kill":
		grace := map[string]int64{"stop": 30, "kill": 0}[verb]
		if len(args) == 2 {
			var err error
			if grace, err = strconv.ParseInt(args[1], 10, 64); err != nil {
				return err
			}
		}
		_, err := n.runtime().StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: grace})
		return err
	case "rm":
		_, err := n.runtime().RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
		return err
	case "reopen":
		_, err := n.runtime().ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: id})
		return err
	case "status":
		return n.containerStatus(ctx, ts, id)
	case "update":
		return n.update(ctx, id, args[1:])
	case "limits":
		return n.limits(ctx, ts, id)
	case "exec":
		return n.exec(ctx, ts, id, 0, args[1:])
	case "exec-timeout":
		if len(args) < 2 {
			return errUsage
		}
		seconds, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return err
		}
		return n.exec(ctx, ts, id, seconds, args[2:])
	case "logs":
		return n.printLog(ts, name)
	case "await":
		if len(args) != 2 {
			return errUsage
		}
		for {
			if log, err := os.ReadFile(n.logFile(name)); err == nil && bytes.Contains(log, []byte(args[1])) {
				return nil
			}
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("the log of %s never had %q: %w", name, args[1], err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	case "wait":
		for {
			resp, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
			if err != nil || resp.Status.State == cri.ContainerState_CONTAINER_EXITED {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return errUsage
}

func command(args []string) ([]string, error) {
	i := slices.Index(args, "--")
	if i < 0 || i+1 == len(args) {
		return nil, fmt.Errorf("no command after --")
	}
	command := slices.Clone(args[i+1:])
	if command[0] == "testbin" {
		command[0] = "/testbin"
	}
	return command, nil
}

func (n *node) createContainer(ctx context.Context, args []string) error {
	sandbox, name := args[0], args[1]
	cmd, err := command(args)
	if err != nil {
		return err
	}
	c := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: testImage},
		Command:  cmd,
		LogPath:  name + ".log",
		Linux: &cri.LinuxContainerConfig{
			Resources:       &cri.LinuxContainerResources{},
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: n.sandboxes[sandbox].GetLinux().GetSecurityContext().GetNamespaceOptions()},
		},
	}
	for _, o := range args[2:slices.Index(args, "--")] {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "image":
			c.Image.Image = value
		case "name":
			c.Metadata.Name = value
		case "mount":
			parts := strings.Split(value, ":")
			c.Mounts = append(c.Mounts, &cri.Mount{HostPath: parts[0], ContainerPath: parts[1], Readonly: len(parts) == 3})
		case "env":
			k, v, _ := strings.Cut(value, "=")
			c.Envs = append(c.Envs, &cri.KeyValue{Key: k, Value: []byte(v)})
		case "memory":
			mib, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return err
			}
			c.Linux.Resources.MemoryLimitInBytes = mib << 20
		case "config":
			if err := n.merge(c, value); err != nil {
				return err
			}
		case "stdin":
			c.Stdin = true
		case "tty":
			c.Tty = true
		case "user":
			uid, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return err
			}
			c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: uid}
		default:
			return fmt.Errorf("unknown option %q", o)
		}
	}
	id := n.ids[sandbox]
	if id == "" {
		id = sandbox
	}
	resp, err := n.runtime().CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: id, Config: c, SandboxConfig: n.sandboxes[sandbox]})
	if err != nil {
		return err
	}
	n.ids[name], n.sandboxOf[name], n.configs[name] = resp.ContainerId, sandbox, c
	return nil
}

// merge adds to a config what a file of the script says, in protobuf's JSON;
// bytes are base64 in it, and $WORK is the script's directory.
func (n *node) merge(config proto.Message, file string) error {
	text, err := os.ReadFile(filepath.Join(n.work, file))
	if err != nil {
		return err
	}
	more := config.ProtoReflect().New().Interface()
	if err := protojson.Unmarshal(bytes.ReplaceAll(text, []byte("$WORK"), []byte(n.work)), more); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	proto.Merge(config, more)
	return nil
}

func (n *node) containerStatus(ctx context.Context, ts *testscript.TestScript, id string) error {
	resp, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return err
	}
	s := resp.Status
	fmt.Fprintf(ts.Stdout(), "state: %s\nexit code: %d\nreason: %s\nmessage: %s\nfinished after start: %t\nstop signal: %s\n",
		strings.ToLower(strings.TrimPrefix(s.State.String(), "CONTAINER_")), s.ExitCode, s.Reason, s.Message, s.FinishedAt >= s.StartedAt && s.StartedAt > 0, s.StopSignal)
	fmt.Fprintf(ts.Stdout(), "image: %s\n", s.GetImage().GetImage())
	for _, m := range s.Mounts {
		fmt.Fprintf(ts.Stdout(), "mount: %s %s image=%s ref=%s\n", m.ContainerPath, m.HostPath, m.Image.GetImage(), m.Image.GetImageRef())
	}
	return nil
}

func (n *node) exec(ctx context.Context, ts *testscript.TestScript, id string, timeout int64, args []string) error {
	cmd, err := command(args)
	if err != nil {
		return err
	}
	resp, err := n.runtime().ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: timeout})
	if err != nil {
		return err
	}
	ts.Stdout().Write(resp.Stdout)
	ts.Stderr().Write(resp.Stderr)
	if resp.ExitCode != 0 {
		return fmt.Errorf("exit code %d", resp.ExitCode)
	}
	return nil
}

func (n *node) logFile(name string) string {
	file := n.logNames[name]
	if file == "" {
		file = name + ".log"
	}
	return filepath.Join(n.dir, "logs", n.sandboxOf[name], file)
}

// printLog prints what is behind "TIME STREAM TAG ", joining partial lines.
func (n *node) printLog(ts *testscript.TestScript, name string) error {
	data, err := os.ReadFile(n.logFile(name))
	if err != nil {
		return err
	}
	for line := range bytes.Lines(data) {
		fields := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 4)
		if len(fields) != 4 {
			return fmt.Errorf("log line %q has no four fields", line)
		}
		out := ts.Stdout()
		if string(fields[1]) == "stderr" {
			out = ts.Stderr()
		}
		out.Write(fields[3])
		if string(fields[2]) == "F" {
			out.Write([]byte("\n"))
		}
	}
	return nil
}
