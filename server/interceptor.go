package server

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/giveway"
	"github.com/crisp-cri/crisp/internal/logctx"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/server/telemetry"
)

// maxMessage is the largest message that cri-client accepts and sends, in bytes.
const maxMessage = 16 << 20

// Interceptors returns the options of the gRPC server that s is registered with. They give each
// request its log attributes, log line, metrics, span, status code and panic handler, so that
// handlers need none of these.
func Interceptors(s *Server) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(maxMessage),
	}
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	ctx, c := s.begin(ctx, info.FullMethod, subject(req), s.podStageOf(req))
	s.enter(c)
	if isPodCall(c.RPC) {
		defer giveway.Call()()
	}
	err = fault.Protect(func() (err error) {
		unknown := func(m protoreflect.Message) { s.unknown.report(ctx, s.log, m) }
		if err = checkRequest(req, unknown); err == nil {
			resp, err = handle(ctx, req)
		}
		return err
	})
	s.leave(c, resp, err)
	return resp, s.finish(ctx, c, result(resp), err)
}

// AuxServerOptions returns the options of a gRPC server for services other than CRI. As with
// CRI, errors get status codes and panics are caught, but its calls appear in no metrics or
// traces.
func AuxServerOptions(s *Server) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnaryInterceptor(s.interceptAux), grpc.MaxRecvMsgSize(maxAuxRequest)}
}

// maxAuxRequest bounds a request to such a server, in bytes; all real requests are smaller.
const maxAuxRequest = 64 << 10

func (s *Server) interceptAux(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	ctx = logctx.With(ctx, "rpc", info.FullMethod)
	err = fault.Protect(func() (err error) {
		resp, err = handle(ctx, req)
		return err
	})
	if err == nil {
		return resp, nil
	}
	s.logPanic(ctx, err)
	code, level := codeOf(ctx, err), slog.LevelDebug
	if code == codes.Unknown {
		level = slog.LevelError
	}
	s.log.Log(ctx, level, "rpc failed", "kind", code.String(), "err", err)
	return nil, status.Error(code, err.Error())
}

func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	ctx, c := s.begin(stream.Context(), info.FullMethod, nil, new(podStage))
	err := fault.Protect(func() error { return handle(srv, contextStream{stream, ctx, s}) })
	return s.finish(ctx, c, nil, err)
}

// contextStream is a stream whose handler gets our context.
type contextStream struct {
	grpc.ServerStream
	ctx    context.Context
	server *Server
}

// RecvMsg also reports fields that this CRI does not have.
func (s contextStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if p, ok := m.(proto.Message); ok && err == nil && len(p.ProtoReflect().GetUnknown()) > 0 {
		s.server.unknown.report(s.ctx, s.server.log, p.ProtoReflect())
	}
	return err
}

func (s contextStream) Context() context.Context { return s.ctx }

// logPanic logs the stack if err comes from a panic, of the request itself or of work it waited
// for.
func (s *Server) logPanic(ctx context.Context, err error) {
	if p, ok := errors.AsType[*fault.Panic](err); ok {
		s.log.ErrorContext(ctx, "rpc panicked", "err", p.Value, "stack", string(p.Stack))
	}
}

// A call is an RPC under way, and the object it is about.
type call struct {
	*telemetry.Call
	subject  []any
	podStage *podStage // of its pod's start
}

// begin gives the request its log attributes and begins to record its stages.
func (s *Server) begin(ctx context.Context, method string, subject []any, st *podStage) (context.Context, call) {
	ctx, c := s.o.Telemetry.Begin(ctx, path.Base(method), st.trace)
	attrs := append([]any{"rpc", c.RPC}, subject...)
	if id := c.TraceID(); id != "" {
		attrs = append(attrs, "trace", id)
	}
	return logctx.With(ctx, attrs...), call{c, subject, st}
}

// finish turns the error into a status and writes the log line, with the slow stages and the IDs
// in the response.
func (s *Server) finish(ctx context.Context, c call, result []any, err error) error {
	code := codes.OK
	if err != nil {
		code = codeOf(ctx, err)
		s.logPanic(ctx, err)
	}
	took, shares := c.End(telemetry.Outcome{
		Code: code.String(), Err: err, Attrs: append(slices.Clip(c.subject), result...), Result: pullResult(c.RPC, code, err),
		Left: ctx.Err() != nil && c.RPC != "GetContainerEvents", // whose calls end in no other way
	})
	args := append(append([]any{"took", brief(took)}, slow(took, shares)...), result...)
	if n := c.Stages().Counted(telemetry.Bytes); n > 0 {
		args = append(args, "bytes", n)
	}
	if err == nil {
		s.log.Log(ctx, successLevel(c.RPC, took), "rpc done", args...)
		return nil
	}
	s.log.Log(ctx, failureLevel(code, err), "rpc failed", append(args, "kind", code.String(), "err", err)...)
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err // it is a status already
	}
	return status.Error(code, err.Error())
}

// codeOf is the only place where an error becomes a status code. The kubelet acts on some of
// them: NotFound of a status call, DeadlineExceeded of ExecSync, and Unknown of PullImage, whose
// text it reads.
//
// The end of the caller's own context takes precedence over the errors it caused. DeadlineExceeded
// is only for the caller's time limits, for what it says about a probe: a limit of our own that has
// passed is ours to mend. That is Aborted, which no client takes for a crispd that does not answer, as
// crisp's agent does Unavailable.
func codeOf(ctx context.Context, err error) codes.Code {
	var pull *registry.PullError
	var st interface{ GRPCStatus() *status.Status }
	switch mine := ctx.Err() != nil && errors.Is(err, ctx.Err()); {
	case !mine && errors.As(err, &pull):
		return codes.Unknown
	case mine && ctx.Err() == context.DeadlineExceeded, errors.As(err, new(*overdueError)):
		return codes.DeadlineExceeded
	case errors.Is(err, context.DeadlineExceeded):
		return codes.Aborted
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.As(err, &st): // from the generated code: Unimplemented
		return st.GRPCStatus().Code()
	}
	switch fault.KindOf(err) {
	case fault.Invalid:
		return codes.InvalidArgument
	case fault.NotFound:
		return codes.NotFound
	case fault.Exists:
		return codes.AlreadyExists
	case fault.WrongState:
		return codes.FailedPrecondition
	case fault.Unavailable:
		return codes.Unavailable
	}
	if atomicfile.IsFull(err) {
		return codes.Unavailable // the same call succeeds once there is room
	}
	return codes.Unknown
}

// An overdueError is the failure of a call that took longer than its request allows.
type overdueError struct{ error }

func (e *overdueError) Unwrap() error { return e.error }

// overdue marks err if it comes from the end of ctx, the time that the request allows.
func overdue(ctx context.Context, err error) error {
	if ctx.Err() == context.DeadlineExceeded && errors.Is(err, ctx.Err()) {
		return &overdueError{err}
	}
	return err
}

// failureLevel returns the log level of a failed RPC. Error means that we broke a promise, Warn
// that an administrator should look today; a request for an object that does not exist, or that the
// caller abandoned, is everyday traffic.
func failureLevel(code codes.Code, err error) slog.Level {
	var pull *registry.PullError
	switch {
	case code == codes.Unavailable || code == codes.Aborted || errors.As(err, &pull):
		return slog.LevelWarn
	case code == codes.Unknown:
		return slog.LevelError
	}
	return slog.LevelInfo
}

// slow returns the stages and parts of stages that took at least a twentieth of the call's time.
func slow(took time.Duration, shares []stage.Share) []any {
	var attrs []any
	for _, sh := range shares {
		if sh.Took >= max(took/20, time.Millisecond) {
			attrs = append(attrs, sh.Name, brief(sh.Took))
		}
	}
	return attrs
}

// brief rounds a duration for people to read.
func brief(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}

// pullResult returns how a pull ended; "" for other calls.
func pullResult(rpc string, code codes.Code, err error) string {
	var pull *registry.PullError
	switch {
	case rpc != "PullImage":
		return ""
	case err == nil:
		return "success"
	case code == codes.Unknown && errors.As(err, &pull):
		return pull.Reason
	}
	return code.String()
}

// successLevel returns the log level of a successful RPC: one that took much longer than it
// should deserves a look.
func successLevel(rpc string, took time.Duration) slog.Level {
	if most := patience(rpc); most > 0 && took > most {
		return slog.LevelWarn
	}
	return level(rpc)
}

// patience returns how long an RPC may take. 0 = no limit: the time depends on an image, a
// container's grace period, a command or a client that reads.
func patience(rpc string) time.Duration {
	switch {
	case slices.Contains([]string{"PullImage", "StopContainer", "ExecSync", "GetContainerEvents", "Load", "Save", "Watch"}, rpc),
		strings.HasPrefix(rpc, "Stream"), strings.HasPrefix(rpc, "Checkpoint"), strings.HasPrefix(rpc, "Restore"):
		return 0
	case level(rpc) == slog.LevelDebug:
		return time.Second // these only read memory
	}
	return 10 * time.Second
}

// level returns the log level of a successful RPC: calls that change something are of interest,
// the many that only read are not.
func level(rpc string) slog.Level {
	for _, prefix := range []string{"List", "Stream", "Version", "Status", "RuntimeConfig", "Watch"} {
		if strings.HasPrefix(rpc, prefix) {
			return slog.LevelDebug
		}
	}
	for _, suffix := range []string{"Status", "Stats", "FsInfo", "ExecSync", "Events"} {
		if strings.HasSuffix(rpc, suffix) {
			return slog.LevelDebug
		}
	}
	return slog.LevelInfo
}

// isPodCall reports whether a pod waits for an RPC, so that pulls give way to it.
func isPodCall(rpc string) bool {
	return rpc == "ExecSync" || level(rpc) == slog.LevelInfo && (strings.HasSuffix(rpc, "PodSandbox") || strings.HasSuffix(rpc, "Container"))
}

// subject returns the object that a request is about, as log attributes.
func subject(req any) []any {
	var attrs []any
	if r, ok := req.(interface{ GetPodSandboxId() string }); ok && r.GetPodSandboxId() != "" {
		attrs = append(attrs, "sandbox", r.GetPodSandboxId())
	}
	if r, ok := req.(interface{ GetContainerId() string }); ok && r.GetContainerId() != "" {
		attrs = append(attrs, "container", r.GetContainerId())
	}
	if r, ok := req.(interface{ GetImage() *cri.ImageSpec }); ok && r.GetImage() != nil {
		attrs = append(attrs, "image", r.GetImage().GetImage())
	}
	switch r := req.(type) {
	case *cri.RunPodSandboxRequest:
		if m := r.GetConfig().GetMetadata(); m != nil {
			attrs = append(attrs, "name", sandboxName(m))
		}
	case *cri.CreateContainerRequest:
		if m := r.GetConfig().GetMetadata(); m != nil {
			attrs = append(attrs, "name", m.Name)
		}
	}
	return attrs
}

// result returns the ID in a response, as log attributes. After an error the response is a nil
// pointer of its type.
func result(resp any) []any {
	var key, id string
	switch r := resp.(type) {
	case *cri.RunPodSandboxResponse:
		key, id = "sandbox", r.GetPodSandboxId()
	case *cri.CreateContainerResponse:
		key, id = "container", r.GetContainerId()
	case *cri.PullImageResponse:
		key, id = "id", r.GetImageRef()
	}
	if id == "" {
		return nil
	}
	return []any{key, id}
}
