package registry

import (
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"
)

// Names returns the full names that ref may mean, in order: with a registry, and with a tag
// ("latest" if none is given) or a digest; a reference with both means the digest. Only a name
// without a registry can mean several: one for each registry that registries.conf says to
// search, or docker.io. If short-name-mode is enforcing, an ambiguous name is an error.
func (c *Client) Names(ref string) ([]reference.Named, error) {
	name, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, fault.Invalid.Errorf("image name %q: %w", ref, err)
	}
	if !isShort(ref) {
		return []reference.Named{name}, nil
	}
	sys, err := c.system(nil, Caller{})
	if err != nil {
		return nil, err
	}
	if checkRegistries(sys) != nil {
		return []reference.Named{name}, nil // the pull reports it
	}
	written, err := reference.Parse(ref)
	if err != nil {
		return nil, fault.Invalid.Errorf("image name %q: %w", ref, err)
	}
	suffix := strings.TrimPrefix(name.String(), name.Name())
	short := written.(reference.Named).Name()
	if alias, _, err := sysregistriesv2.ResolveShortNameAlias(sys, short); err == nil && alias != nil {
		return parseAll([]string{alias.Name() + suffix})
	}
	registries, err := sysregistriesv2.UnqualifiedSearchRegistries(sys)
	if err != nil || len(registries) == 0 {
		return []reference.Named{name}, nil // it reports this too
	}
	mode, err := sysregistriesv2.GetShortNameMode(sys)
	if err != nil {
		return nil, fault.Invalid.Errorf("registries.conf: %w", err)
	}
	if mode == types.ShortNameModeEnforcing && len(registries) > 1 {
		return nil, fault.Invalid.Errorf("image name %q could be of any of %s: short-name-mode is enforcing, and a daemon cannot ask", ref, strings.Join(registries, ", "))
	}
	var all []string
	for _, r := range registries {
		all = append(all, r+"/"+short+suffix) // the parser adds docker.io's library
	}
	return parseAll(all)
}

func parseAll(refs []string) ([]reference.Named, error) {
	var names []reference.Named
	for _, ref := range refs {
		name, err := reference.ParseDockerRef(ref)
		if err != nil {
			return nil, fault.Invalid.Errorf("image name %q: %w", ref, err)
		}
		names = append(names, name)
	}
	return names, nil
}

// isShort reports whether ref names no registry. The first part of a name is one
// if it could be a host and nothing else.
func isShort(ref string) bool {
	host, _, ok := strings.Cut(ref, "/")
	return !ok || !strings.ContainsAny(host, ".:") && host != "localhost" && strings.ToLower(host) == host
}

// DigestOf returns the digest in name, if it has one.
func DigestOf(name reference.Named) (digest.Digest, bool) {
	if c, ok := name.(reference.Canonical); ok {
		return c.Digest(), true
	}
	return "", false
}

// ForCandidate returns the caller to use when a short name is taken to mean name. The kubelet
// chooses credentials as if a name without a registry were docker.io's: unless they name another
// registry, such credentials must not be sent to any other.
func (c Caller) ForCandidate(ref string, name reference.Named) Caller {
	if c.Auth != nil && c.Auth.ServerAddress == "" && isShort(ref) && !isHub(reference.Domain(name)) {
		c.Auth = nil
	}
	return c
}

// IsDigested reports whether name has a digest.
func IsDigested(name reference.Named) bool {
	_, ok := DigestOf(name)
	return ok
}
