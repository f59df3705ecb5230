package criconn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/internal/fault"
	internalapi "k8s.io/cri-api/pkg/apis"
	criclient "k8s.io/cri-client/pkg"
)

// CallTimeout bounds calls that set no timeout. It is the default of the
// kubelet's --runtime-request-timeout.
const CallTimeout = 2 * time.Minute

// Dial connects to the CRI services at endpoint ("unix:///run/crisp/crisp.sock"), which must
// answer a first call within patience. Later the connection restores itself when it is lost.
// An error of kind fault.Invalid means that the server at endpoint is not a runtime, so that
// waiting is of no use; otherwise the error is fault.Unavailable.
func Dial(ctx context.Context, endpoint string, patience time.Duration) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
	// The client has one timeout for the first answer and for every later RPC, so the
	// context bounds the first.
	answered, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	runtime, err := criclient.NewRemoteRuntimeServiceBuilder().
		WithEndpoint(endpoint).WithConnectionTimeout(CallTimeout).WithTracerProvider(nil).WithUseStreaming(true).Build(answered)
	if err != nil {
		if why := foreign(endpoint, err); why != nil {
			return nil, nil, why
		}
		return nil, nil, unreachable(endpoint, err)
	}
	images, err := criclient.NewRemoteImageServiceBuilder().
		WithEndpoint(endpoint).WithConnectionTimeout(CallTimeout).WithTracerProvider(nil).WithUseStreaming(true).Build(answered)
	if err != nil {
		runtime.Close(ctx)
		return nil, nil, unreachable(endpoint, err)
	}
	return runtime, images, nil
}

// unreachable returns a fault.Unavailable with only the innermost of the client's wrapped
// errors.
func unreachable(endpoint string, err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			break
		}
		err = inner
	}
	if text := criruntime.Fault(err); errors.Is(text, fault.Unavailable) {
		return text
	}
	return fault.Unavailable.Errorf("runtime at %s is not reachable: %s", endpoint, fmt.Sprint(criruntime.Fault(err)))
}
