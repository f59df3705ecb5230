package executor

import (
	"context"
	"os"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// settleLife bounds how long a list waits for calls that a killed crispd left behind.
const settleLife = time.Second

// Call serves one call; it implements wire.Handler. Package wire documents each call at its
// request.
func (x *Executor) Call(ctx context.Context, from *wire.Conn, call *wire.Call) (any, []*os.File, error) {
	switch call.Method {
	case wire.MethodHello:
		return wire.HelloReply{Version: x.opts.Version, Protocol: wire.Protocol, Pid: os.Getpid()}, nil, nil
	case wire.MethodPing:
		x.gate.enter()
		x.gate.leave()
		return nil, nil, nil
	case wire.MethodList:
		// A container that a killed crispd was just starting must not be mistaken for one that
		// never ran, or it would run twice. Its call may not even have been read: then neither
		// our table nor "delete" knows it, so that crispd's handling of interrupted starts
		// (oci's outcome) is not enough. Nor is this: a start may take longer than the caller of
		// list should wait. A start that has not begun by then never will (reserve).
		ctx, cancel := context.WithTimeout(ctx, settleLife)
		defer cancel()
		from.Settle(ctx)
		return x.table.list(), nil, nil
	case wire.MethodSubscribe:
		x.subscribers.add(from)
		return nil, nil, nil
	case wire.MethodWarm:
		x.warmer.warm()
		return nil, nil, nil
	case wire.MethodRun:
		return with(call, func(req wire.RunRequest) (any, []*os.File, error) { return x.run(ctx, from, req) })
	case wire.MethodRestore:
		return with(call, func(req wire.RestoreRequest) (any, []*os.File, error) { return x.restore(ctx, from, req) })
	case wire.MethodPodInit:
		return with(call, func(req wire.PodInitRequest) (any, []*os.File, error) { return x.podInit(ctx, from, req) })
	case wire.MethodExec:
		return with(call, func(req wire.ExecRequest) (any, []*os.File, error) { return x.exec(ctx, from, req) })
	case wire.MethodExecWait:
		return with(call, func(req wire.ExecRef) (any, []*os.File, error) {
			reply, err := x.execs.wait(ctx, from, call, req.ExecID)
			return reply, nil, err
		})
	case wire.MethodExecKill:
		return plain(call, func(req wire.ExecRef) error { return x.execs.kill(req.ExecID) })
	case wire.MethodSignal:
		return plain(call, x.signal)
	case wire.MethodDelete:
		return plain(call, func(req wire.Ref) error { return x.delete(req.ID) })
	case wire.MethodAttach:
		return onlyFiles(call, func(req wire.AttachRequest) ([]*os.File, error) { return x.attach(from, req) })
	case wire.MethodDescriptors:
		return onlyFiles(call, x.descriptors)
	case wire.MethodResize:
		return plain(call, x.resize)
	case wire.MethodReopenLog:
		return plain(call, func(req wire.Ref) error { return x.reopenLog(req.ID) })
	case wire.MethodUpdate:
		return plain(call, x.update)
	case wire.MethodFreeze:
		return plain(call, func(req wire.FreezeRequest) error { return x.freeze(ctx, from, req) })
	case wire.MethodThaw:
		return plain(call, x.thaw)
	case wire.MethodCheckpoint:
		return plain(call, func(req wire.CheckpointRequest) error { return x.checkpoint(ctx, req) })
	case wire.MethodAdopt:
		return plain(call, func(req wire.AdoptRequest) error { return x.adopt(req, call) })
	case wire.MethodUpgrade:
		return plain(call, func(req wire.UpgradeRequest) error { return x.upgrade(req, call) })
	case wire.MethodProfile:
		return with(call, func(req wire.ProfileRequest) (any, []*os.File, error) {
			data, err := profileNow(req)
			return wire.ProfileReply{Data: data}, nil, err
		})
	case wire.MethodShutdown:
		return nil, nil, x.shutdown(call)
	}
	return nil, nil, fault.Invalid.Errorf("unknown method %q", call.Method)
}

// with calls f with the decoded request.
func with[Req any](call *wire.Call, f func(Req) (any, []*os.File, error)) (any, []*os.File, error) {
	var req Req
	if err := call.Decode(&req); err != nil {
		return nil, nil, err
	}
	return f(req)
}

func onlyFiles[Req any](call *wire.Call, f func(Req) ([]*os.File, error)) (any, []*os.File, error) {
	return with(call, func(req Req) (any, []*os.File, error) {
		files, err := f(req)
		return nil, files, err
	})
}

func plain[Req any](call *wire.Call, f func(Req) error) (any, []*os.File, error) {
	return with(call, func(req Req) (any, []*os.File, error) { return nil, nil, f(req) })
}

// descriptors serves MethodDescriptors.
func (x *Executor) descriptors(ref wire.Ref) ([]*os.File, error) {
	c, err := x.table.runs(ref.ID)
	if err != nil {
		return nil, err
	}
	return c.descriptors()
}

// shutdown serves MethodShutdown. The answer is sent before the process exits.
func (x *Executor) shutdown(call *wire.Call) error {
	if n := x.table.count(); n > 0 {
		return fault.WrongState.Errorf("executor has %d containers", n)
	}
	call.Then = func() {
		if err := x.Close(); err != nil {
			x.log.Warn("executor did not shut down", "err", err) // a container was started meanwhile
		}
	}
	return nil
}
