package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// imageFile is in the directory of a checkpoint. A restored process begins anew, as the one that was
// checkpointed, whatever config.json says, and with restoredEnv in its environment.
const (
	imageFile   = "shimtest"
	restoredEnv = "RESTORED"
)

// pause stops the process, or lets it go on.
func (p *running) pause(on bool) error {
	if p.isPaused() == on {
		return status.Errorf(codes.FailedPrecondition, "whether the process is paused is %t already", on)
	}
	sig := syscall.SIGCONT
	if on {
		sig = syscall.SIGSTOP
	}
	if err := p.signal(sig); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = on
	return nil
}

func (p *running) isPaused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused
}

// checkpoint writes what restore reads. As with runc's shim, options are of one type, and CRIU leaves a
// log where it works.
func (p *running) checkpoint(in *task.CheckpointTaskRequest) error {
	if !p.isPaused() {
		return status.Error(codes.FailedPrecondition, "the files of a process that runs may be of another moment")
	}
	if in.Options != nil {
		o := &options.CheckpointOptions{}
		if err := in.Options.UnmarshalTo(o); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		if err := os.WriteFile(filepath.Join(o.WorkPath, "dump.log"), []byte("Error (shimtest): none\n"), 0o600); err != nil {
			return err
		}
	}
	data, err := json.Marshal(p.process)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(in.Path, imageFile), data, 0o600)
}

// restore makes the process the one of a checkpoint.
func (p *running) restore(in *task.CreateTaskRequest) error {
	data, err := os.ReadFile(filepath.Join(in.Checkpoint, imageFile))
	if err == nil {
		err = json.Unmarshal(data, &p.process)
	}
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	p.process.Env = append(p.process.Env, restoredEnv+"=yes")
	p.init.Process = p.process
	if in.Options.GetTypeUrl() != "containerd.runc.v1.Options" {
		return nil
	}
	o := &options.Options{}
	if err := proto.Unmarshal(in.Options.Value, o); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	log, err := os.OpenFile(filepath.Join(o.CriuWorkPath, "restore.log"), os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		err = log.Close()
	}
	return err
}
