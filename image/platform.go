package image

import (
	"runtime"

	"github.com/crisp-cri/crisp/internal/fault"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// runsAlso are the architectures of other programs that a machine can run.
var runsAlso = map[string]string{"amd64": "386", "arm64": "arm"}

// checkPlatform refuses the image of another machine. Only a list of manifests says of
// what it is; a single one does not, so its config is asked. One that says nothing is
// believed to fit.
func checkPlatform(p v1.Platform) error {
	os := p.OS == "" || p.OS == "linux"
	arch := p.Architecture == "" || p.Architecture == runtime.GOARCH || p.Architecture == runsAlso[runtime.GOARCH]
	if os && arch {
		return nil
	}
	return fault.NotFound.Errorf("it is for the platform %.40s/%.40s, and this is linux/%s", p.OS, p.Architecture, runtime.GOARCH)
}
