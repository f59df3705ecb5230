package blob

import (
	"cmp"
	"runtime"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"
)

// runsAlso maps an architecture to the other one that such a machine can also run.
var runsAlso = map[string]string{"amd64": "386", "arm64": "arm"}

// architectures maps other names of architectures (uname -m, Debian) to OCI's, and to the
// variants that some of them imply.
var architectures = map[string][2]string{
	"x86_64": {"amd64"}, "x86-64": {"amd64"}, "i386": {"386"}, "i686": {"386"},
	"aarch64": {"arm64"}, "armhf": {"arm", "v7"}, "armel": {"arm", "v6"},
}

// referenceType is the annotation by which BuildKit marks a manifest in a list that is not an
// image but describes one. BuildKit gives those a platform that no machine has; but tools that
// rewrite lists drop platforms, and a manifest without one fits every machine.
const referenceType = "vnd.docker.reference.type"

// normalize returns p in the terms of OCI's image specification, which are Go's; like containerd
// it accepts other names. The first variant of an architecture has no name.
func normalize(p v1.Platform) v1.Platform {
	p.OS, p.Architecture, p.Variant = strings.ToLower(p.OS), strings.ToLower(p.Architecture), strings.ToLower(p.Variant)
	if known, ok := architectures[p.Architecture]; ok {
		p.Architecture = known[0]
		p.Variant = cmp.Or(p.Variant, known[1])
	}
	switch {
	case p.Architecture == "amd64" && p.Variant == "v1":
		p.Variant = ""
	case (p.Architecture == "arm" || p.Architecture == "arm64") && p.Variant != "" && p.Variant[0] != 'v':
		p.Variant = "v" + p.Variant
	}
	return p
}

// ChoosePlatform returns the digest of the manifest in a list that is for this machine, or for
// the platform that sys describes. Failing that, it returns the one for the other architecture
// that the machine can run; failing that, for WebAssembly; failing that, fault.NotFound.
func ChoosePlatform(list []byte, kind string, sys *types.SystemContext) (*digest.Digest, error) {
	index, err := readList(list, kind)
	if err != nil {
		return nil, fault.Invalid.Errorf("list of manifests: %s", brief(err))
	}
	index.Manifests = slices.DeleteFunc(index.Manifests, func(m v1.Descriptor) bool {
		return m.Annotations[referenceType] == "attestation-manifest"
	})
	for i, m := range index.Manifests {
		if m.Platform == nil {
			continue
		}
		p := normalize(*m.Platform)
		switch {
		case p.OS == "" && p.Architecture == "":
			index.Manifests[i].Platform = nil // as if it had none: the config decides
			continue
		case p.OS == "":
			p.OS = "linux"
		}
		index.Manifests[i].Platform = &p
	}
	d, err := index.ChooseInstance(sys)
	if other := runsAlso[runtime.GOARCH]; err != nil && other != "" && (sys == nil || sys.ArchitectureChoice == "") {
		var also types.SystemContext
		if sys != nil {
			also = *sys
		}
		also.ArchitectureChoice = other
		if found, otherErr := index.ChooseInstance(&also); otherErr == nil {
			d, err = found, nil
		}
	}
	for _, os := range moduleOSes {
		if err == nil || sys != nil && (sys.OSChoice != "" || sys.ArchitectureChoice != "") {
			break
		}
		if found, otherErr := index.ChooseInstance(&types.SystemContext{OSChoice: os, ArchitectureChoice: moduleArch}); otherErr == nil {
			d, err = found, nil
		}
	}
	if err != nil {
		return nil, fault.NotFound.Errorf("%w", err)
	}
	return &d, nil
}

// readList reads a list of either kind.
func readList(list []byte, kind string) (*manifest.OCI1Index, error) {
	if kind != manifest.DockerV2ListMediaType {
		return manifest.OCI1IndexFromManifest(list)
	}
	l, err := manifest.Schema2ListFromManifest(list)
	if err != nil {
		return nil, err
	}
	return l.ToOCI1Index()
}

// checkPlatform refuses an image for another machine. Only a list of manifests names platforms;
// for a single manifest its config decides. A config that names none fits.
func checkPlatform(of v1.Platform) error {
	p := normalize(of)
	os := p.OS == "" || p.OS == "linux"
	arch := p.Architecture == "" || p.Architecture == runtime.GOARCH || p.Architecture == runsAlso[runtime.GOARCH]
	if os && arch || isModule(p) {
		return nil
	}
	return fault.NotFound.Errorf("it is for the platform %.40s/%.40s, and this is linux/%s", of.OS, of.Architecture, runtime.GOARCH)
}
