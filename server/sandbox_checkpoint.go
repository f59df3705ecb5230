package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/oci"
)

// A pod's checkpoint is one directory in the output directory. It gets its final name when it is
// complete:
//
//	<output>/pod/pod.dump                podDump
//	<output>/pod/devshm-checkpoint.tar   files of /dev/shm
//	<output>/pod/<container ID>/         see package checkpoint
const (
	podDir     = "pod"
	podPartial = ".pod.partial-*" // one per call: a call that thaws late removes no other's
	podFile    = "pod.dump"
)

// A podDump records what was checkpointed.
type podDump struct {
	Version    int
	Config     []byte // cri.PodSandboxConfig
	Handler    string
	Containers []podContainer
}

type podContainer struct{ Name, ID string }

// CheckpointPod writes the state of containers of a pod, all from the same moment, into a
// directory.
//
// CRI: "The runtime must pause every selected container before capturing any of
// them, keep all selected containers paused until every selected container has been
// captured, and resume all of them before returning on success, error, or deadline
// expiry."
func (s *Server) CheckpointPod(ctx context.Context, req *cri.CheckpointPodRequest) (*cri.CheckpointPodResponse, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, fault.Invalid.Errorf("CheckpointPod was called without a deadline")
	}
	if err := noOptions(req.Options); err != nil {
		return nil, err
	}
	sb, err := s.readySandbox(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	containers, err := s.selected(sb, req.ContainerIds)
	if err != nil {
		return nil, err
	}
	if err := isEmptyDir(req.OutputPath); err != nil {
		return nil, err
	}
	if err := s.checkpointPod(ctx, sb, containers, req.OutputPath); err != nil {
		return nil, fmt.Errorf("checkpoint sandbox %s%s: %w", sb.ID(), s.byShim(sb), err)
	}
	return &cri.CheckpointPodResponse{}, nil
}

// selected returns the containers that the request names. CRI: "The list must be
// non-empty, must not contain duplicates […]. Every container must belong to
// pod_sandbox_id and be running".
func (s *Server) selected(sb *oci.Sandbox, ids []string) ([]*oci.Container, error) {
	if len(ids) == 0 {
		return nil, fault.Invalid.Errorf("no containers are named")
	}
	var list []*oci.Container
	names := make(map[string]string)
	for _, id := range ids {
		c, err := s.runtime.Container(id)
		if err != nil {
			return nil, err
		}
		if c.SandboxID() != sb.ID() {
			return nil, fault.Invalid.Errorf("container %s is not in sandbox %s", c.ID(), sb.ID())
		}
		if slices.Contains(list, c) {
			return nil, fault.Invalid.Errorf("container %s is named twice", c.ID())
		}
		name := s.index.container(c).config.GetMetadata().GetName()
		if other, ok := names[name]; ok {
			return nil, fault.Invalid.Errorf("containers %s and %s have the same name, %q", other, c.ID(), name)
		}
		names[name] = c.ID()
		if err := s.mayCheckpoint(c); err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

func (s *Server) checkpointPod(ctx context.Context, sb *oci.Sandbox, containers []*oci.Container, output string) (err error) {
	dir, err := os.MkdirTemp(output, podPartial)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	// A descriptor reports only lost writes that happened after it was opened (syncfs(2)): one
	// opened after the dump might report none.
	disk, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer disk.Close()
	stage.Next(ctx, "freeze")
	f, err := s.runtime.Freeze(ctx, containers, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	err = fault.Protect(func() error { return s.dumpPod(ctx, f, sb, containers, dir) }) // they must be thawed
	if err := errors.Join(err, f.Thaw(ctx)); err != nil {
		return err
	}
	stage.Next(ctx, "sync")
	if err := unix.Syncfs(int(disk.Fd())); err != nil {
		return &os.PathError{Op: "syncfs", Path: dir, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	whole := filepath.Join(output, podDir)
	if err := os.Rename(dir, whole); err != nil {
		return err
	}
	dir = whole
	return atomicfile.SyncDir(output)
}

// dumpPod writes the checkpoints of frozen containers and the state they share.
func (s *Server) dumpPod(ctx context.Context, f *oci.Freeze, sb *oci.Sandbox, containers []*oci.Container, dir string) error {
	rec := s.index.sandbox(sb)
	pod := podDump{Version: dumpVersion, Handler: rec.handler}
	var err error
	if pod.Config, err = proto.Marshal(rec.config); err != nil {
		return err
	}
	for _, c := range containers {
		own := filepath.Join(dir, c.ID())
		if err := os.Mkdir(own, 0o700); err != nil {
			return err
		}
		if err := s.dump(ctx, f, c, own); err != nil {
			return err
		}
		pod.Containers = append(pod.Containers, podContainer{s.index.container(c).config.GetMetadata().GetName(), c.ID()})
	}
	if err := dumpShm(ctx, sb, dir); err != nil {
		return err
	}
	return checkpoint.Write(dir, podFile, pod)
}

func readPod(checkpointPath string) (*podDump, *cri.PodSandboxConfig, error) {
	if !filepath.IsAbs(checkpointPath) {
		return nil, nil, fault.Invalid.Errorf("checkpoint path %q is not absolute", checkpointPath)
	}
	var pod podDump
	if err := checkpoint.Read(filepath.Join(checkpointPath, podDir), podFile, &pod); err != nil {
		return nil, nil, fault.Invalid.Errorf("checkpoint %s: %v", checkpointPath, err)
	}
	if pod.Version != dumpVersion {
		return nil, nil, fault.Invalid.Errorf("checkpoint %s is of version %d, not %d", checkpointPath, pod.Version, dumpVersion)
	}
	config := new(cri.PodSandboxConfig)
	if err := proto.Unmarshal(pod.Config, config); err != nil {
		return nil, nil, fault.Invalid.Errorf("checkpoint %s: %w", checkpointPath, err)
	}
	for _, c := range pod.Containers {
		if c.ID == "" || strings.Trim(c.ID, "0123456789abcdef") != "" {
			return nil, nil, fault.Invalid.Errorf("checkpoint %s: container ID %q", checkpointPath, c.ID)
		}
	}
	return &pod, config, nil
}
