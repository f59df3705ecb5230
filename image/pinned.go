package image

import (
	"regexp"
	"strings"

	"go.podman.io/image/v5/docker/reference"
)

// pinning matches the names of pinned images.
type pinning []*regexp.Regexp

func newPinning(patterns []string) pinning {
	var p pinning
	for _, pattern := range patterns {
		if pattern == "" {
			continue
		}
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		p = append(p, regexp.MustCompile("^"+strings.Join(parts, ".*")+"$"))
	}
	return p
}

// match reports whether a pattern matches one of an image's names: in full, without tag or
// digest, or as Docker shortens it.
func (p pinning) match(names []string) bool {
	for _, full := range names {
		forms := []string{full}
		if name, err := reference.ParseDockerRef(full); err == nil {
			forms = append(forms, name.Name(), reference.FamiliarString(name), reference.FamiliarName(name))
		}
		for _, form := range forms {
			for _, re := range p {
				if re.MatchString(form) {
					return true
				}
			}
		}
	}
	return false
}
