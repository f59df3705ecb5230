package test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// checkpointCmd is:
//
//	checkpoint container NAME FILE [SECONDS]        CheckpointContainer
//	checkpoint create SANDBOX NAME FROM IMAGE       a container with the config of FROM, from an archive or a checkpoint image
//	checkpoint push FILE NAME                       the archive as a checkpoint image, $REGISTRY/NAME
//	checkpoint pod SANDBOX DIR CONTAINER...         CheckpointPod, into the new directory DIR
//	checkpoint pod-killed SANDBOX DIR CONTAINER...  the same, with crispd killed when something is frozen
//	checkpoint restore SANDBOX NEW DIR CONTAINER...  RestorePod, with the new names CONTAINER-NEW
//	checkpoint frozen CONTAINER...                  the number of frozen containers
func (n *node) checkpointCmd(ts *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	switch verb, args := args[0], args[1:]; {
	case verb == "container" && (len(args) == 2 || len(args) == 3):
		req := &cri.CheckpointContainerRequest{ContainerId: n.idOf(args[0]), Location: args[1]}
		if len(args) == 3 {
			var err error
			if req.Timeout, err = strconv.ParseInt(args[2], 10, 64); err != nil {
				return err
			}
		}
		_, err := n.runtime().CheckpointContainer(ctx, req)
		return err
	case verb == "create" && len(args) == 4:
		return n.createFromCheckpoint(ctx, args[0], args[1], args[2], args[3])
	case verb == "push" && len(args) == 2:
		return n.pushCheckpoint(args[0], args[1])
	case verb == "pod" && len(args) >= 2:
		return n.checkpointPod(ctx, args[0], args[1], args[2:])
	case verb == "pod-killed" && len(args) >= 3:
		return n.checkpointPodKilled(ctx, args[0], args[1], args[2:])
	case verb == "restore" && len(args) >= 3:
		return n.restorePod(ctx, args[0], args[1], args[2], args[3:])
	case verb == "frozen":
		count := 0
		for _, name := range args {
			frozen, err := n.frozen(ctx, n.idOf(name))
			if err != nil {
				return err
			}
			if frozen {
				count++
			}
		}
		fmt.Fprintln(ts.Stdout(), count)
		return nil
	}
	return errUsage
}

func (n *node) idOf(name string) string {
	if id := n.ids[name]; id != "" {
		return id
	}
	return name
}

func (n *node) createFromCheckpoint(ctx context.Context, sandbox, name, from, image string) error {
	c := proto.Clone(n.configs[from]).(*cri.ContainerConfig)
	c.Metadata.Name, c.LogPath, c.Image = name, name+".log", &cri.ImageSpec{Image: image}
	resp, err := n.runtime().CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: n.idOf(sandbox), Config: c, SandboxConfig: n.sandboxes[sandbox]})
	if err != nil {
		return err
	}
	n.ids[name], n.sandboxOf[name], n.configs[name] = resp.ContainerId, sandbox, c
	return nil
}

// pushCheckpoint makes the same image as "buildah add" of an archive.
func (n *node) pushCheckpoint(file, ref string) error {
	l, err := tarball.LayerFromFile(file)
	if err != nil {
		return err
	}
	image, err := imageOf(l)
	if err != nil {
		return err
	}
	image = mutate.MediaType(image, types.OCIManifestSchema1)
	image = mutate.Annotations(image, map[string]string{"org.criu.checkpoint.container.name": "counter"}).(v1.Image)
	return n.push(ref, image)
}

func (n *node) podRequest(sandbox, dir string, containers []string) (*cri.CheckpointPodRequest, error) {
	req := &cri.CheckpointPodRequest{PodSandboxId: n.idOf(sandbox), OutputPath: dir}
	for _, c := range containers {
		req.ContainerIds = append(req.ContainerIds, n.idOf(c))
	}
	return req, os.MkdirAll(dir, 0o700)
}

func (n *node) checkpointPod(ctx context.Context, sandbox, dir string, containers []string) error {
	req, err := n.podRequest(sandbox, dir, containers)
	if err == nil {
		_, err = n.runtime().CheckpointPod(ctx, req)
	}
	return err
}

// checkpointPodKilled kills crispd as soon as a container of the pod is frozen.
func (n *node) checkpointPodKilled(ctx context.Context, sandbox, dir string, containers []string) error {
	var groups []string
	for _, name := range containers {
		group, err := n.freezer(ctx, n.idOf(name))
		if err != nil {
			return err
		}
		groups = append(groups, group)
	}
	req, err := n.podRequest(sandbox, dir, containers)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := n.runtime().CheckpointPod(ctx, req)
		done <- err
	}()
	for {
		for _, file := range groups {
			if isFrozen(file) {
				err := n.stopDaemon(syscall.SIGKILL)
				if <-done == nil {
					return fmt.Errorf("the checkpoint was finished before crispd was killed")
				}
				return err
			}
		}
		select {
		case err := <-done:
			return fmt.Errorf("nothing was seen frozen; the call ended with %v", err)
		case <-time.After(time.Millisecond):
		}
	}
}

func (n *node) restorePod(ctx context.Context, old, name, dir string, containers []string) error {
	config := proto.Clone(n.sandboxes[old]).(*cri.PodSandboxConfig)
	config.Metadata.Uid = "uid-" + name
	config.LogDirectory = filepath.Join(n.dir, "logs", name)
	req := &cri.RestorePodRequest{CheckpointPath: dir, Config: config}
	for _, c := range containers {
		req.ContainerConfigs = append(req.ContainerConfigs, n.configs[c])
	}
	resp, err := n.runtime().RestorePod(ctx, req)
	if err != nil {
		return err
	}
	n.ids[name], n.sandboxes[name] = resp.PodSandboxId, config
	if len(resp.RestoredContainers) != len(containers) {
		return fmt.Errorf("%d containers were restored, want %d", len(resp.RestoredContainers), len(containers))
	}
	for _, c := range resp.RestoredContainers {
		as := c.Name + "-" + name
		n.ids[as], n.sandboxOf[as], n.configs[as] = c.ContainerId, name, n.configs[c.Name]
		n.logNames[as] = n.configs[c.Name].LogPath
	}
	return nil
}

// freezer returns the file that shows whether a running container is frozen.
func (n *node) freezer(ctx context.Context, id string) (string, error) {
	resp, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return "", err
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(resp.Info["info"]), &info); err != nil || info.Pid == 0 {
		return "", fmt.Errorf("container %s does not run (err %v)", id, err)
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", info.Pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		field := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case field[1] == "freezer":
			return filepath.Join("/sys/fs/cgroup/freezer", field[2], "freezer.state"), nil
		case field[1] == "" && testenv.Exists("/sys/fs/cgroup/cgroup.controllers"):
			return filepath.Join("/sys/fs/cgroup", field[2], "cgroup.events"), nil
		}
	}
	return "", fmt.Errorf("container %s has no freezer: %s", id, data)
}

func (n *node) frozen(ctx context.Context, id string) (bool, error) {
	file, err := n.freezer(ctx, id)
	return err == nil && isFrozen(file), err
}

func isFrozen(file string) bool {
	data, _ := os.ReadFile(file)
	return strings.Contains(string(data), "frozen 1") || strings.HasPrefix(string(data), "FROZEN")
}
