package executor

import (
	"bytes"
	"runtime"
	"runtime/pprof"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// profileNow serves wire.ProfileRequest. A profile of memory is of what is reachable now: it
// begins with a garbage collection.
func profileNow(req wire.ProfileRequest) ([]byte, error) {
	p := pprof.Lookup(req.Name)
	if p == nil {
		return nil, fault.NotFound.Errorf("executor has no profile %q", req.Name)
	}
	if req.Name == "heap" {
		runtime.GC()
	}
	var b bytes.Buffer
	err := p.WriteTo(&b, req.Debug)
	return b.Bytes(), err
}
