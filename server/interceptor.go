package server

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/logctx"
)

// maxMessage is what cri-client accepts and sends, in bytes.
const maxMessage = 16 << 20

// Interceptors are the options of the gRPC server that s is registered with.
// Here a request gets its log attributes, its one log line, its status code and
// its safety net, so that no handler needs any of them.
func (s *Server) Interceptors() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(maxMessage),
	}
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	rpc := path.Base(info.FullMethod)
	ctx = logctx.With(ctx, append([]any{"rpc", rpc}, subject(req)...)...)
	begin := time.Now()
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, s.panicked(ctx, p)
		}
		err = s.finish(ctx, rpc, begin, err)
	}()
	return handle(ctx, req)
}

func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	rpc := path.Base(info.FullMethod)
	ctx := logctx.With(stream.Context(), "rpc", rpc)
	begin := time.Now()
	defer func() {
		if p := recover(); p != nil {
			err = s.panicked(ctx, p)
		}
		err = s.finish(ctx, rpc, begin, err)
	}()
	return handle(srv, contextStream{stream, ctx})
}

// contextStream is a stream whose handler sees our context.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s contextStream) Context() context.Context { return s.ctx }

// panicked turns a panic into an error of the one request that caused it.
func (s *Server) panicked(ctx context.Context, p any) error {
	s.log.ErrorContext(ctx, "rpc panicked", "err", p, "stack", string(debug.Stack()))
	return fault.Internal.Errorf("internal error: %v", p)
}

// finish writes the log line and gives the error its code.
func (s *Server) finish(ctx context.Context, rpc string, begin time.Time, err error) error {
	took := time.Since(begin)
	if err == nil {
		s.log.Log(ctx, level(rpc), "rpc done", "took", took)
		return nil
	}
	code := codeOf(ctx, err)
	s.log.Log(ctx, failureLevel(code, err), "rpc failed", "took", took, "kind", code.String(), "err", err)
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err // it is one already
	}
	return status.Error(code, err.Error())
}

// codeOf is the one place where an error becomes a status code. The kubelet
// tells some apart: NotFound of a status, DeadlineExceeded of ExecSync, and
// Unknown of PullImage, of which it reads the text.
//
// The caller's own context comes first, whatever it made fail; but a registry
// that did not answer the store in time is an unavailable registry.
func codeOf(ctx context.Context, err error) codes.Code {
	var pull *image.PullError
	var st interface{ GRPCStatus() *status.Status }
	switch mine := ctx.Err() != nil && errors.Is(err, ctx.Err()); {
	case !mine && errors.As(err, &pull):
		return codes.Unknown
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.As(err, &st): // of the generated code: Unimplemented
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
	return codes.Unknown
}

// failureLevel is how bad it is that an RPC failed. Error means that we broke a
// promise and Warn that somebody should look today; a request for what is not
// there, or that its caller gave up, is everyday traffic.
func failureLevel(code codes.Code, err error) slog.Level {
	var pull *image.PullError
	switch {
	case code == codes.Unavailable || errors.As(err, &pull):
		return slog.LevelWarn
	case code == codes.Unknown:
		return slog.LevelError
	}
	return slog.LevelInfo
}

// level is how interesting it is that an RPC went well: the ones that change
// something are, the many that only look are not.
func level(rpc string) slog.Level {
	for _, prefix := range []string{"List", "Stream", "Version", "Status", "RuntimeConfig"} {
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

// subject says which object a request is about, as log attributes.
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
			attrs = append(attrs, "sandbox", sandboxName(m))
		}
	case *cri.CreateContainerRequest:
		if m := r.GetConfig().GetMetadata(); m != nil {
			attrs = append(attrs, "container", m.Name)
		}
	}
	return attrs
}
