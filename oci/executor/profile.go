package executor

import (
	"bytes"
	"runtime"
	"runtime/pprof"
	"slices"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// profileNow serves wire.ProfileRequest. A memory profile shows what is reachable now: it begins
// with a garbage collection.
func profileNow(req wire.ProfileRequest) ([]byte, error) {
	if !slices.Contains([]string{"goroutine", "heap", "allocs"}, req.Name) {
		return nil, fault.NotFound.Errorf("executor has no profile %q", req.Name)
	}
	if req.Name == "heap" {
		runtime.GC()
	}
	var b bounded
	if err := pprof.Lookup(req.Name).WriteTo(&b, req.Debug); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// bounded accepts at most wire.MaxProfile bytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > wire.MaxProfile {
		return 0, fault.Invalid.Errorf("profile of more than %d bytes", wire.MaxProfile)
	}
	return b.Buffer.Write(p)
}
