package server

import (
	"testing"

	"github.com/crisp-cri/crisp/image"
)

// If several repositories have an image, a container's status has the digest in the repository that
// it requested, which users compare with that repository.
func TestImageRef(t *testing.T) {
	const sum = "@sha256:0123"
	img := image.Image{ID: "sha256:abc", Digests: []string{"docker.io/library/web" + sum, "localhost:5000/mirror/web" + sum, "quay.io/team/web" + sum}}
	for asked, want := range map[string]string{
		"web":                          "docker.io/library/web",
		"library/web:1":                "docker.io/library/web",
		"docker.io/library/web:1":      "docker.io/library/web",
		"localhost:5000/mirror/web":    "localhost:5000/mirror/web",
		"localhost:5000/mirror/web:1":  "localhost:5000/mirror/web",
		"quay.io/team/web@sha256:0123": "quay.io/team/web",
		"team/web":                     "quay.io/team/web",
		"sha256:abc":                   "docker.io/library/web",
		"":                             "docker.io/library/web",
	} {
		if got := imageRef(img, asked); got != want+sum {
			t.Errorf("%q: %s, want %s", asked, got, want+sum)
		}
	}
	if got := imageRef(image.Image{ID: "sha256:abc"}, "web"); got != "sha256:abc" {
		t.Errorf("of no registry: %s", got)
	}
}
