package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A machine is the sandbox of the Sandbox API: a process, in place of a virtual machine, without which no
// container lives.
type machine struct {
	id, bundle string
	cmd        *exec.Cmd // nil = not started; guarded by service.mu
	began      time.Time
	done       chan struct{} // closed once it has ended
	code       uint32        // valid once done is closed
	ended      time.Time     // the same
}

// machineArg makes this program a machine.
const machineArg = "machine"

// runMachine does nothing until it is killed.
func runMachine() error {
	time.Sleep(24 * time.Hour)
	return nil
}

func (s *service) doSandbox(ctx context.Context, in proto.Message) (proto.Message, error) {
	if in, ok := in.(*sandboxapi.CreateSandboxRequest); ok {
		return s.createMachine(in)
	}
	s.mu.Lock()
	m := s.machine
	s.mu.Unlock()
	if m == nil || m.id != idOf(in) {
		return nil, status.Errorf(codes.Unknown, "sandbox %q: runtime not ready", idOf(in))
	}
	switch in.(type) {
	case *sandboxapi.StartSandboxRequest:
		return s.startMachine(m)
	case *sandboxapi.StopSandboxRequest:
		return &sandboxapi.StopSandboxResponse{}, s.stopMachine(m)
	case *sandboxapi.WaitSandboxRequest:
		select {
		case <-m.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return &sandboxapi.WaitSandboxResponse{ExitStatus: m.code, ExitedAt: timestamppb.New(m.ended)}, nil
	case *sandboxapi.SandboxStatusRequest:
		out := &sandboxapi.SandboxStatusResponse{SandboxID: m.id, Pid: uint32(os.Getpid()), State: "SANDBOX_READY", CreatedAt: timestamppb.New(m.began)}
		if m.over() {
			out.State = "SANDBOX_NOTREADY"
		}
		return out, nil
	case *sandboxapi.SandboxMetricsRequest:
		return &sandboxapi.SandboxMetricsResponse{Metrics: &types.Metric{ID: m.id, Data: &anypb.Any{
			TypeUrl: "io.containerd.cgroups.v2.Metrics", Value: machineMetrics(),
		}}}, nil
	case *sandboxapi.ShutdownSandboxRequest:
		if err := s.stopMachine(m); err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.quit)
		s.quit = make(chan struct{})
		return &sandboxapi.ShutdownSandboxResponse{}, nil
	}
	return nil, status.Errorf(codes.Unimplemented, "%T", in)
}

// machineMetrics has 42 MiB of memory and 7 processes.
func machineMetrics() []byte {
	number := func(field protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), v)
	}
	pids := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), number(1, 7))
	return append(pids, protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), number(32, 42<<20))...)
}

func (m *machine) over() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

func (s *service) createMachine(in *sandboxapi.CreateSandboxRequest) (proto.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machine != nil {
		return nil, status.Errorf(codes.AlreadyExists, "sandbox %q", s.machine.id)
	}
	s.machine = &machine{id: in.SandboxID, bundle: in.BundlePath, done: make(chan struct{})}
	return &sandboxapi.CreateSandboxResponse{}, nil
}

func (s *service) startMachine(m *machine) (proto.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.began = time.Now()
	m.cmd = exec.Command("/proc/self/exe", "-namespace", flags.namespace, "-id", m.id, machineArg)
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	go s.waitMachine(m)
	pid := m.cmd.Process.Pid
	if err := os.WriteFile(filepath.Join(m.bundle, pidFile), []byte(strconv.Itoa(pid)), 0o600); err != nil {
		return nil, err
	}
	return &sandboxapi.StartSandboxResponse{Pid: uint32(os.Getpid()), CreatedAt: timestamppb.New(m.began)}, nil
}

// waitMachine ends the containers with their machine.
func (s *service) waitMachine(m *machine) {
	_ = m.cmd.Wait()
	s.mu.Lock()
	for _, c := range s.containers {
		for _, p := range c.processes {
			_ = p.signal(syscall.SIGKILL)
		}
	}
	m.ended = time.Now()
	if state := m.cmd.ProcessState.Sys().(syscall.WaitStatus); state.Signaled() && state.Signal() != syscall.SIGTERM {
		m.code = 128 + uint32(state.Signal())
	}
	s.mu.Unlock()
	close(m.done)
}

// stopMachine ends the machine.
func (s *service) stopMachine(m *machine) error {
	s.mu.Lock()
	cmd := m.cmd
	s.mu.Unlock()
	if cmd == nil || m.over() {
		return nil
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	<-m.done
	return nil
}
