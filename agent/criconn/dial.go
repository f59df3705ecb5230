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

// CallTimeout is the kubelet's --runtime-request-timeout: what RPCs without a
// rule of their own may take.
const CallTimeout = 2 * time.Minute

// Dial connects to the CRI services at endpoint ("unix:///run/crisp/crisp.sock")
// and has them answer once. Afterwards the connection repairs itself for as long
// as it is used. An error of kind fault.Invalid says that what is there is no
// runtime and that waiting for one is of no use.
func Dial(ctx context.Context, endpoint string, patience time.Duration) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
	// The client takes its one timeout for the first answer and for every RPC
	// after it, so the patience for the first is set from outside.
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

// unreachable shortens the client's nested sentences to the innermost.
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
