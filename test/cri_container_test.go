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
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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

// printLog prints the text of log records, what follows "TIME STREAM TAG ", and joins
// partial lines.
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
