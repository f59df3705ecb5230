package image_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image/imagetest"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// What can be refused at once is not fetched first: an image for another machine
// ("exec format error"), and one of more layers than an overlay can have.
func TestImageThatCannotRun(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	layer := imagetest.TarOf(t, map[string]string{"x": "y"})
	of := func(os, arch string) v1.Image { return v1.Image{Platform: v1.Platform{OS: os, Architecture: arch}} }
	var many [][]byte
	for i := range 501 {
		many = append(many, imagetest.TarOf(t, map[string]string{fmt.Sprint(i): ""}))
	}
	for name, c := range map[string]struct {
		img  *imagetest.Built
		want error
	}{
		"s390x":   {imagetest.BuildOf(t, "gzip", of("linux", "s390x"), layer), fault.NotFound},
		"windows": {imagetest.BuildOf(t, "gzip", of("windows", "amd64"), layer), fault.NotFound},
		"many":    {imagetest.BuildOf(t, "gzip", v1.Image{}, many...), fault.Invalid},
		"i386":    {imagetest.BuildOf(t, "gzip", of("linux", "386"), layer), nil},
	} {
		reg.Push(name, "v1", c.img)
		reg.Asked("")
		_, err := p.Store.Pull(t.Context(), reg.Host+"/"+name+":v1", registry.Caller{})
		if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: error is %v, want one of kind %v", name, err, c.want)
		}
		if got := reg.Asked("/blobs/"); c.want != nil && len(got) > 1 {
			t.Errorf("%s: fetched %d blobs, want the config only", name, len(got))
		}
		if c.want == fault.NotFound && (err == nil || !strings.Contains(err.Error(), "platform")) {
			t.Errorf("%s: %v does not say why", name, err)
		}
	}
}
