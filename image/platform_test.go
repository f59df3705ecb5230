package image_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Images that cannot run are rejected before they are fetched: an image for another architecture
// ("exec format error"), and one with more layers than an overlay can have.
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

// Builders write the architecture under their system's name. Like containerd, crispd accepts these
// names in a config and in an index.
func TestArchitectureByAnotherName(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	for i, platform := range []v1.Platform{
		{OS: "linux", Architecture: "x86_64"},
		{OS: "Linux", Architecture: "x86-64"},
		{OS: "linux", Architecture: "AMD64", Variant: "v1"},
	} {
		img := imagetest.BuildOf(t, "gzip", v1.Image{Platform: platform, Author: string(rune('a' + i))}, imagetest.TarOf(t, map[string]string{"a": "a"}))
		other := imagetest.BuildOf(t, "gzip", v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "aarch64"}}, imagetest.TarOf(t, map[string]string{"a": "other"}))
		reg.Push("app", "alone", img)
		reg.PushIndex("app", "list", other, img)
		for _, tag := range []string{"alone", "list"} {
			got, err := p.Store.Pull(t.Context(), reg.Host+"/app:"+tag, registry.Caller{})
			if err != nil || got.ID != img.ID() {
				t.Errorf("%s of %+v: image is %q: %v", tag, platform, got.ID, err)
			}
		}
		reg.Push("app", "other", other)
		_, err := p.Store.Pull(t.Context(), reg.Host+"/app:other", registry.Caller{})
		failedWith(t, err, fault.NotFound, "")
	}
}

// An index without an image for this architecture may have one for another architecture that the
// machine can run, which the config of a single image may also have.
func TestIndexOfOtherArchitecture(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	of := func(arch, text string) *imagetest.Built {
		return imagetest.BuildOf(t, "gzip", v1.Image{Platform: v1.Platform{OS: "linux", Architecture: arch}}, imagetest.TarOf(t, map[string]string{"a": text}))
	}
	small, own, far := of("386", "small"), of("amd64", "own"), of("s390x", "far")
	reg.PushIndex("app", "both", far, small, own)
	reg.PushIndex("app", "small", far, small)
	reg.PushIndex("app", "far", far)
	if got := p.Pull(reg.Host + "/app:both"); got.ID != own.ID() {
		t.Errorf("image is %s, want the machine's own", got.ID)
	}
	if got := p.Pull(reg.Host + "/app:small"); got.ID != small.ID() {
		t.Errorf("image is %s, want the other one", got.ID)
	}
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app:far", registry.Caller{})
	failedWith(t, err, fault.NotFound, "")
}

// A manifest with an empty platform in an index is for every machine, or for every OS of an
// architecture, unless its config says otherwise.
func TestIndexWithEmptyPlatform(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.Build(t, "gzip", "a")
	far := imagetest.BuildOf(t, "gzip", v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "s390x"}}, imagetest.TarOf(t, map[string]string{"a": "far"}))
	for _, platform := range []v1.Platform{{}, {Architecture: "amd64"}} {
		img.Desc.Platform = &platform
		reg.PushIndex("app", "v1", far, img)
		if got := p.Pull(reg.Host + "/app:v1"); got.ID != img.ID() {
			t.Errorf("%+v: image is %s", platform, got.ID)
		}
	}
	far.Desc.Platform = &v1.Platform{}
	reg.PushIndex("app", "far", far)
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app:far", registry.Caller{})
	failedWith(t, err, fault.NotFound, "")
}

// An attestation in an index is never chosen, wherever it is, with or without a platform.
func TestAttestationIsNotChosen(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	about, img := imagetest.Build(t, "gzip", "attestation"), imagetest.Build(t, "gzip", "image")
	about.Desc.Annotations = map[string]string{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": img.Desc.Digest.String()}
	for _, platform := range []*v1.Platform{nil, {OS: "unknown", Architecture: "unknown"}} {
		about.Desc.Platform, img.Desc.Platform = platform, nil
		reg.PushIndex("app", "v1", about, img)
		if got := p.Pull(reg.Host + "/app:v1"); got.ID != img.ID() {
			t.Errorf("beside an attestation for %+v: image is %s", platform, got.ID)
		}
	}
	reg.PushIndex("app", "alone", about)
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app:alone", registry.Caller{})
	failedWith(t, err, fault.NotFound, "")
}

// The manifest of this platform is a name of an image that was pulled by its list: with
// imagePullPolicy Never, or without the registry, a pod that names it must start. It is not reported
// as pulled. It goes with the image.
func TestImageIsFoundByItsPlatformsManifest(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img, other := imagetest.Build(t, "gzip", "a"), imagetest.BuildOf(t, "gzip", v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "s390x"}})
	list := reg.PushIndex("app", "v1", other, img)
	got := p.Pull(reg.Host + "/app:v1")
	if want := reg.Host + "/app@" + list.String(); len(got.Digests) != 1 || got.Digests[0] != want {
		t.Errorf("digests are %v, want %s", got.Digests, want)
	}
	name := reg.Host + "/app@" + img.Desc.Digest.String()
	for range 2 {
		if found, err := p.Store.Get(name); err != nil || found.ID != got.ID {
			t.Errorf("image is %s (%v)", found.ID, err)
		}
		for _, none := range []string{reg.Host + "/app@" + other.Desc.Digest.String(), reg.Host + "/another@" + img.Desc.Digest.String()} {
			if _, err := p.Store.Get(none); !errors.Is(err, fault.NotFound) {
				t.Errorf("%s: %v", none, err)
			}
		}
		p.Reopen(image.Options{})
	}
	if err := p.Store.Allowed(t.Context(), "", name, got.ID); err != nil {
		t.Error(err)
	}
	if again := p.Pull(name); again.ID != got.ID || len(again.Digests) != 2 {
		t.Errorf("pulled by it, the image is %+v", again)
	}
	if err := p.Store.Remove(t.Context(), name); err != nil {
		t.Error(err)
	}
	if _, err := p.Store.Get(name); !errors.Is(err, fault.NotFound) {
		t.Errorf("after its removal: %v", err)
	}
}

// The library verifies manifests by sha256 only. Another digest must be named as the reason: the
// pull will never succeed, however often it is tried.
func TestManifestByAnotherDigest(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.Build(t, "gzip", "a")
	sum := digest.SHA512.FromBytes(img.Manifest)
	reg.Push("app", "v1", img)
	img.Desc.Digest = sum
	reg.PushIndex("app", "list", img)
	for _, ref := range []string{"/app@" + sum.String(), "/app:list"} {
		_, err := p.Store.Pull(t.Context(), reg.Host+ref, registry.Caller{})
		failedWith(t, err, fault.Invalid, "")
		if err == nil || !strings.Contains(err.Error(), "sha512") || !strings.Contains(err.Error(), "only digests by sha256") {
			t.Errorf("%s: %v", ref, err)
		}
	}
}
