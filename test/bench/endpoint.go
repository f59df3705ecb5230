package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	label      = "crisp.dev/bench"
	rpcTimeout = 2 * time.Minute
	maxMessage = 16 << 20
)

// endpoint is a runtime to be measured.
type endpoint struct {
	name    string
	addr    string
	pids    []int     // processes of the runtime, each with all its descendants
	pidfile string    // file with the PID of one more
	exes    []program // the same, by executable
	bridge  string    // handler of the network "bridge", "" for the default one
	ctl     string    // program that restarts the daemon: called with "stop", then "start"

	conn    *grpc.ClientConn
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient

	imageRef string // the pods' image in the answer of its PullImage
}

// program is the name of an executable and, if others have the same name, a text in its command
// line.
type program struct {
	name, text string
}

func endpointNames(es []endpoint) []string {
	var names []string
	for _, e := range es {
		names = append(names, e.name)
	}
	return names
}

// parseEndpoint reads name=address[,pid=N…][,pidfile=FILE][,exe=NAME[@TEXT]…][,bridge=HANDLER][,ctl=FILE].
func parseEndpoint(s string) (endpoint, error) {
	fields := strings.Split(s, ",")
	var e endpoint
	e.name, e.addr, _ = strings.Cut(fields[0], "=")
	if e.name == "" || e.addr == "" {
		return e, fmt.Errorf("endpoint %q: want name=address", s)
	}
	for _, f := range fields[1:] {
		key, value, _ := strings.Cut(f, "=")
		if value == "" {
			return e, fmt.Errorf("endpoint %s: %q has no value", e.name, f)
		}
		switch key {
		case "pid":
			pid, err := strconv.Atoi(value)
			if err != nil || pid < 1 {
				return e, fmt.Errorf("endpoint %s: pid %q is no process id", e.name, value)
			}
			e.pids = append(e.pids, pid)
		case "pidfile":
			e.pidfile = value
		case "exe":
			name, text, _ := strings.Cut(value, "@")
			e.exes = append(e.exes, program{name, text})
		case "bridge":
			e.bridge = value
		case "ctl":
			e.ctl = value
		default:
			return e, fmt.Errorf("endpoint %s: no option %q", e.name, key)
		}
	}
	return e, nil
}

// processes returns the PIDs given, and the one in the file, which changes with a restart.
func (e *endpoint) processes() ([]int, error) {
	if e.pidfile == "" {
		return e.pids, nil
	}
	data, err := os.ReadFile(e.pidfile)
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.pidfile, err)
	}
	return append([]int{pid}, e.pids...), nil
}

func (e *endpoint) dial() (err error) {
	e.conn, err = grpc.NewClient(e.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return err
	}
	e.runtime, e.images = cri.NewRuntimeServiceClient(e.conn), cri.NewImageServiceClient(e.conn)
	return nil
}

func (e *endpoint) exec(ctx context.Context, container string) error {
	res, err := e.runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: container, Cmd: []string{"true"}})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("exit code %d", res.ExitCode)
	}
	return err
}

// clean removes every pod of a bench, of this run or of a killed one. Containers are removed first:
// StopPodSandbox has no timeout parameter, and some runtimes wait for two minutes.
func (e *endpoint) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	ours := map[string]string{label: "true"}
	containers, err := e.runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: ours}})
	if err != nil {
		return fmt.Errorf("ListContainers: %w", err)
	}
	var errs []error
	for _, c := range containers.Containers {
		if _, err := e.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.Id}); err != nil {
			errs = append(errs, fmt.Errorf("StopContainer: %w", err))
		}
	}
	sandboxes, err := e.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: ours}})
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("ListPodSandbox: %w", err))...)
	}
	for _, sb := range sandboxes.Items {
		errs = append(errs, e.removeSandbox(ctx, sb.Id, nil))
	}
	return errors.Join(errs...)
}
