package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/crisp-cri/crisp/test/shimtest/behaviour"
)

// A service is the Task API of one pod.
type service struct {
	quit   chan struct{}
	events *publisher

	mu         sync.Mutex
	containers map[string]*container // guarded by mu
	machine    *machine              // the sandbox of the Sandbox API; nil = none; guarded by mu
}

// A container has the processes of one, by their exec IDs; that of its own is "".
type container struct {
	id, bundle, root string
	spec             spec
	processes        map[string]*running // guarded by service.mu
}

// serve is the shim itself: a daemon with the socket as descriptor 3.
func serve() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	unix.CloseOnExec(3) // a machine that had it open would be taken for the shim
	l, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	if err := openLog(); err != nil {
		return err
	}
	s := &service{quit: make(chan struct{}), events: newPublisher(), containers: map[string]*container{}}
	server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()))
	if err != nil {
		return err
	}
	name := map[int]string{2: "containerd.task.v2.Task", 3: "containerd.task.v3.Task"}[load().TaskVersion()]
	server.Register(name, s.methods(task.File_runtime_task_v3_shim_proto.Services().ByName("Task")))
	if load().Sandbox {
		desc := sandboxapi.File_runtime_sandbox_v1_sandbox_proto.Services().ByName("Sandbox")
		server.Register(string(desc.FullName()), s.methods(desc))
	}
	go func() {
		<-s.quit
		time.Sleep(50 * time.Millisecond) // the answer to Shutdown
		_ = os.Remove(os.Getenv("SHIMTEST_SOCKET"))
		os.Exit(0)
	}()
	return server.Serve(context.Background(), l)
}

var _ = taskv2.File_runtime_task_v2_shim_proto // the same messages by another name

// methods are those of a service. Of the Task API's versions the messages differ in their names only.
func (s *service) methods(of protoreflect.ServiceDescriptor) map[string]ttrpc.Method {
	methods := map[string]ttrpc.Method{}
	all := of.Methods()
	for i := range all.Len() {
		m := all.Get(i)
		message, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
		if err != nil {
			fatal(err)
		}
		methods[string(m.Name())] = func(ctx context.Context, unmarshal func(any) error) (any, error) {
			in := message.New().Interface()
			if err := unmarshal(in); err != nil {
				return nil, err
			}
			return s.call(ctx, string(m.Name()), in)
		}
	}
	return methods
}

// call records a request, does with it what the behaviour wants, and carries it out.
func (s *service) call(ctx context.Context, name string, in proto.Message) (proto.Message, error) {
	b := load()
	id := idOf(in)
	kind := s.kindOf(id, in)
	text, err := plain(in)
	if err != nil {
		return nil, err
	}
	refused := s.check(b.Dialect, kind, in)
	r := behaviour.Request{Call: name, Kind: kind, ID: id, Request: text}
	if refused != nil {
		r.Error = refused.Error()
	}
	b.Append(r)
	if b.Log != "" {
		fmt.Fprintln(os.Stderr, lines(b.Log))
	}
	disturb(b, name, kind)
	for _, call := range []string{name, name + " " + kind} {
		if fail, ok := b.Fail[call]; ok {
			return nil, failure(fail)
		}
	}
	if refused != nil {
		return nil, refused
	}
	out, err := s.do(ctx, b, in)
	if err != nil {
		if _, ok := status.FromError(err); !ok {
			err = status.Error(codes.Unknown, err.Error())
		}
		return nil, err
	}
	return out, nil
}

// idOf returns the ID in a request: a container's, or a sandbox's.
func idOf(in proto.Message) string {
	fields := in.ProtoReflect().Descriptor().Fields()
	field := fields.ByName("id")
	if field == nil {
		field = fields.ByName("sandbox_id")
	}
	return in.ProtoReflect().Get(field).String()
}

// plain returns a request as JSON. The options and specs in it may be of any type.
func plain(in proto.Message) ([]byte, error) {
	in = proto.Clone(in)
	parts := map[string]any{}
	in.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if field.Message() == nil || field.IsList() || field.IsMap() {
			return true
		}
		if part, ok := v.Message().Interface().(*anypb.Any); ok {
			parts[string(field.Name())] = map[string]string{"type": part.TypeUrl, "value": strings.ToValidUTF8(string(part.Value), "?")}
			in.ProtoReflect().Clear(field)
		}
		return true
	})
	rest, err := protojson.Marshal(in)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(rest, &parts); err != nil {
		return nil, err
	}
	return json.Marshal(parts)
}

// failure makes an error of "Code: text".
func failure(text string) error {
	name, rest, _ := strings.Cut(text, ": ")
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if code.String() == name {
			return status.Error(code, rest)
		}
	}
	return status.Error(codes.Unknown, text)
}

// kindOf returns what the container of a request is in its pod.
func (s *service) kindOf(id string, in proto.Message) string {
	if create, ok := in.(*task.CreateTaskRequest); ok {
		spec, _ := readSpec(create.Bundle)
		return spec.kind()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.containers[id]; c != nil {
		return c.spec.kind()
	}
	if in.ProtoReflect().Descriptor().Fields().ByName("sandbox_id") != nil {
		return "sandbox"
	}
	return ""
}

func (s *service) do(ctx context.Context, b behaviour.Behaviour, in proto.Message) (proto.Message, error) {
	empty := &emptypb.Empty{}
	switch in := in.(type) {
	case *task.CreateTaskRequest:
		return s.create(b, in)
	case *task.ExecProcessRequest:
		return empty, s.exec(in)
	case *task.StartRequest:
		return s.start(b, in)
	case *task.DeleteRequest:
		return s.delete(in)
	case *task.ShutdownRequest:
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.containers) == 0 || in.Now {
			s.containers = map[string]*container{}
			close(s.quit)
			s.quit = make(chan struct{})
		}
		return empty, nil
	}
	if in.ProtoReflect().Descriptor().Fields().ByName("sandbox_id") != nil {
		return s.doSandbox(ctx, in)
	}
	execID := ""
	if field := in.ProtoReflect().Descriptor().Fields().ByName("exec_id"); field != nil {
		execID = in.ProtoReflect().Get(field).String()
	}
	p, err := s.find(idOf(in), execID)
	if err != nil {
		return nil, err
	}
	switch in := in.(type) {
	case *task.WaitRequest:
		select {
		case <-p.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return &task.WaitResponse{ExitStatus: p.code, ExitedAt: timestamppb.New(p.ended)}, nil
	case *task.StateRequest:
		return p.state(in), nil
	case *task.KillRequest:
		return empty, p.signal(syscall.Signal(in.Signal))
	case *task.ResizePtyRequest:
		return empty, p.resize(in.Width, in.Height)
	case *task.CloseIORequest:
		p.closeStdin()
		return empty, nil
	case *task.PauseRequest:
		return empty, p.pause(true)
	case *task.ResumeRequest:
		return empty, p.pause(false)
	case *task.CheckpointTaskRequest:
		return empty, p.checkpoint(in)
	case *task.UpdateTaskRequest:
		return empty, nil
	case *task.PidsRequest:
		return &task.PidsResponse{Processes: []*tasktypes.ProcessInfo{{Pid: uint32(p.pid())}}}, nil
	case *task.StatsRequest:
		return &task.StatsResponse{Stats: &anypb.Any{TypeUrl: "io.containerd.cgroups.v1.Metrics", Value: p.metrics(b.NoPids)}}, nil
	case *task.ConnectRequest:
		return &task.ConnectResponse{ShimPid: uint32(os.Getpid()), TaskPid: uint32(p.pid()), Version: "shimtest"}, nil
	}
	return nil, status.Errorf(codes.Unimplemented, "%T", in)
}

// find returns a process of a container.
func (s *service) find(id, execID string) (*running, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.containers[id]
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "container %q", id)
	}
	p := c.processes[execID]
	if p == nil {
		return nil, status.Errorf(codes.NotFound, "process %q of container %q", execID, id)
	}
	return p, nil
}

func (s *service) create(b behaviour.Behaviour, in *task.CreateTaskRequest) (proto.Message, error) {
	spec, err := readSpec(in.Bundle)
	if err != nil {
		return nil, err
	}
	c := &container{id: in.ID, bundle: in.Bundle, spec: spec, root: spec.root(in.Bundle), processes: map[string]*running{}}
	s.mu.Lock()
	if s.containers[in.ID] != nil {
		s.mu.Unlock()
		return nil, status.Errorf(codes.AlreadyExists, "container %q", in.ID)
	}
	s.containers[in.ID] = c
	s.mu.Unlock()
	p := newRunning(c, "", spec.Process, stdio{in.Terminal, in.Stdin, in.Stdout, in.Stderr})
	for _, m := range in.Rootfs {
		p.init.Rootfs = append(p.init.Rootfs, mount{Type: m.Type, Source: m.Source, Options: m.Options})
	}
	if in.Checkpoint != "" {
		if err := p.restore(in); err != nil {
			s.mu.Lock()
			delete(s.containers, in.ID)
			s.mu.Unlock()
			return nil, err
		}
	}
	p.module = b.Dialect == "runwasi"
	p.nothing = p.module && spec.kind() == "sandbox"
	if err := p.prepare(); err != nil {
		s.mu.Lock()
		delete(s.containers, in.ID)
		s.mu.Unlock()
		return nil, err
	}
	s.mu.Lock()
	c.processes[""] = p
	s.mu.Unlock()
	return &task.CreateTaskResponse{Pid: uint32(shownPID(b, p))}, nil
}

// shownPID is the PID that a shim's answers have. That of a virtual machine is the same for all of its
// processes, and runwasi's answer to Create has its own.
func shownPID(b behaviour.Behaviour, p *running) int {
	if b.Dialect == "kata" || p.nothing {
		return os.Getpid()
	}
	return p.pid()
}

func (s *service) exec(in *task.ExecProcessRequest) error {
	init, err := s.find(in.ID, "")
	if err != nil {
		return err
	}
	var process process
	if err := json.Unmarshal(in.Spec.GetValue(), &process); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.containers[in.ID]
	switch {
	case init.exited():
		return status.Errorf(codes.FailedPrecondition, "container %q has stopped", in.ID)
	case c.processes[in.ExecID] != nil:
		return status.Errorf(codes.AlreadyExists, "process %q", in.ExecID)
	}
	p := newRunning(c, in.ExecID, process, stdio{in.Terminal, in.Stdin, in.Stdout, in.Stderr})
	p.init.Join = init.pid()
	c.processes[in.ExecID] = p
	return nil
}

func (s *service) start(b behaviour.Behaviour, in *task.StartRequest) (proto.Message, error) {
	p, err := s.find(in.ID, in.ExecID)
	if err != nil {
		return nil, err
	}
	if in.ExecID != "" {
		if err := p.prepare(); err != nil {
			return nil, err
		}
	}
	if err := p.release(); err != nil {
		return nil, err
	}
	go func() {
		<-p.done
		s.events.exit(p)
	}()
	return &task.StartResponse{Pid: uint32(shownPID(b, p))}, nil
}

func (s *service) delete(in *task.DeleteRequest) (proto.Message, error) {
	p, err := s.find(in.ID, in.ExecID)
	if err != nil {
		return nil, err
	}
	switch {
	case p.isPrepared() && !p.exited() && p.isReleased():
		return nil, status.Errorf(codes.FailedPrecondition, "process %q of %q runs", in.ExecID, in.ID)
	case p.isPrepared() && !p.exited():
		if err := p.signal(syscall.SIGKILL); err != nil {
			return nil, err
		}
		<-p.done
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.ExecID != "" {
		delete(s.containers[in.ID].processes, in.ExecID)
	} else {
		delete(s.containers, in.ID)
	}
	return &task.DeleteResponse{Pid: uint32(p.pid()), ExitStatus: p.code, ExitedAt: timestamppb.New(p.ended)}, nil
}

var errGone = errors.New("process already finished")
