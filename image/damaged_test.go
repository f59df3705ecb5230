package image_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
)

// damages has the ways in which a host can damage its response.
var damages = map[string]func(w http.ResponseWriter, data []byte){
	"login page": func(w http.ResponseWriter, _ []byte) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<html>Log in first.</html>")
	},
	"half": func(w http.ResponseWriter, data []byte) {
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Write(data[:len(data)/2])
	},
	"nothing": func(w http.ResponseWriter, _ []byte) { w.WriteHeader(http.StatusOK) },
	"other": func(w http.ResponseWriter, data []byte) {
		other := slices.Clone(data)
		other[len(other)/2] ^= 1
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Write(other)
	},
	"longer": func(w http.ResponseWriter, data []byte) {
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Write(append(slices.Clone(data), "more"...))
	},
	"breaks off": func(w http.ResponseWriter, data []byte) {
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		w.Write(data[:len(data)/2])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	},
}

// A mirror that damages its responses must not fail a pull that the registry itself can serve.
func TestDamagedByMirror(t *testing.T) {
	mirror, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Mirrored(origin, mirror)
	n := 0
	for _, part := range []string{"manifest", "listed manifest", "config", "layer"} {
		for name, damage := range damages {
			n++
			img := imagetest.Build(t, "gzip", fmt.Sprint("a", n), fmt.Sprint("b", n))
			repo := fmt.Sprint("app", n)
			top := mirror.PushIndex(repo, "v1", img)
			origin.PushIndex(repo, "v1", img)
			path, data := "/manifests/"+top.String(), []byte(fmt.Sprintf(`{"schemaVersion":2,"manifests":[%s]}`, imagetest.MustJSON(t, img.Desc)))
			switch part {
			case "listed manifest":
				path, data = "/manifests/"+img.Desc.Digest.String(), img.Manifest
			case "config":
				path, data = "/blobs/"+img.ID(), img.Config
			case "layer":
				path, data = "/blobs/"+digest.FromBytes(img.Blobs[1]).String(), img.Blobs[1]
			}
			var spoiled atomic.Bool
			mirror.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, path) {
					spoiled.Store(true)
					damage(w, data)
					return true
				}
				return false
			})
			got, err := p.Store.Pull(t.Context(), origin.Host+"/"+repo+"@"+top.String(), registry.Caller{})
			if err != nil || got.ID != img.ID() {
				t.Errorf("%s, %s: image is %q: %v", part, name, got.ID, err)
			}
			if !spoiled.Load() {
				t.Errorf("%s, %s: the mirror was not asked", part, name)
			}
			mirror.Intercept(nil)
		}
	}
}

// If all hosts fail, the error has the failure of each, and the pull ends. The next one succeeds
// once one host works again.
func TestDamagedEverywhere(t *testing.T) {
	mirror, second, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Configure(fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", origin.Host, mirror.Host, second.Host))
	img := imagetest.Build(t, "gzip", "a", "b")
	for _, part := range []string{"/manifests/", "/blobs/" + img.ID(), "/blobs/" + digest.FromBytes(img.Blobs[0]).String()} {
		var asked atomic.Int32
		for _, reg := range []*imagetest.Registry{mirror, second, origin} {
			reg.Push("app", "v1", img)
			reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodGet && strings.Contains(r.URL.Path, part) {
					asked.Add(1)
					damages["login page"](w, nil)
					return true
				}
				return false
			})
		}
		_, err := p.Store.Pull(t.Context(), origin.Host+"/app:v1", registry.Caller{})
		failedWith(t, err, fault.Unavailable, "")
		if err == nil || !strings.Contains(err.Error(), mirror.Host) || !strings.Contains(err.Error(), second.Host) {
			t.Errorf("%s: error %v does not name each place", part, err)
		}
		if n := asked.Load(); n > 12 {
			t.Errorf("%s: was asked for %d times", part, n)
		}
		second.Intercept(nil)
		p.Pull(origin.Host + "/app:v1")
		if err := p.Store.Remove(t.Context(), img.ID()); err != nil {
			t.Error(err)
		}
	}
}

// If a mirror fails within a layer, the pull continues the layer from the registry.
func TestMirrorDiesWithinLayer(t *testing.T) {
	mirror, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Mirrored(origin, mirror)
	img := imagetest.Build(t, "plain", strings.Repeat("a long text ", 10_000))
	mirror.Push("app", "v1", img)
	origin.Push("app", "v1", img)
	var dead atomic.Bool
	mirror.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if dead.Load() {
			panic(http.ErrAbortHandler)
		}
		if !strings.HasSuffix(r.URL.Path, digest.FromBytes(img.Blobs[0]).String()) {
			return false
		}
		dead.Store(true)
		damages["breaks off"](w, img.Blobs[0])
		return true
	})
	if got := p.Pull(origin.Host + "/app:v1"); got.ID != img.ID() {
		t.Errorf("image is %s", got.ID)
	}
	if !dead.Load() {
		t.Error("the mirror was not asked")
	}
}

// If a layer does not match the image's config, the image is at fault, and no host is blamed.
func TestWrongImageBlamesNoPlace(t *testing.T) {
	mirror, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Mirrored(origin, mirror)
	img := imagetest.Build(t, "gzip", "a")
	other := imagetest.Build(t, "gzip", "b")
	img.Blobs[0], other.Blobs[0] = other.Blobs[0], img.Blobs[0]
	img.Manifest = []byte(strings.NewReplacer(
		digest.FromBytes(other.Blobs[0]).String(), digest.FromBytes(img.Blobs[0]).String(),
		fmt.Sprintf(`"size":%d}]`, len(other.Blobs[0])), fmt.Sprintf(`"size":%d}]`, len(img.Blobs[0])),
	).Replace(string(img.Manifest)))
	mirror.Push("app", "v1", img)
	origin.Push("app", "v1", img)
	_, err := p.Store.Pull(t.Context(), origin.Host+"/app:v1", registry.Caller{})
	failedWith(t, err, fault.Invalid, "")
	if n := origin.Asked("/v2/app/"); len(n) > 0 {
		t.Errorf("the registry was asked: %v", n)
	}
}

// The files of an artifact, and layers that are only compared with those on the node, also come
// from the next host.
func TestDamagedFileByMirror(t *testing.T) {
	mirror, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Mirrored(origin, mirror)
	weights := strings.Repeat("weights ", 1000)
	here, other := imagetest.Build(t, "gzip", "same"), imagetest.Build(t, "zstd", "same")
	for _, reg := range []*imagetest.Registry{mirror, origin} {
		reg.PushArtifact("model", "v1", "dir/model.bin", weights, "card", "text")
		reg.Push("app", "v1", here)
		reg.Push("other", "v1", other)
	}
	p.Pull(origin.Host + "/app:v1")
	var spoiled atomic.Int32
	mirror.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasSuffix(r.URL.Path, digest.FromString(weights).String()):
			damages["half"](w, []byte(weights))
		case strings.HasSuffix(r.URL.Path, digest.FromBytes(other.Blobs[0]).String()):
			damages["other"](w, other.Blobs[0])
		default:
			return false
		}
		spoiled.Add(1)
		return true
	})
	model := p.Pull(origin.Host + "/model:v1")
	root, err := p.Store.RootFS().Mount(t.Context(), "model", model.ID, rootfs.MountOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := imagetest.ReadFile(t, root, "dir/model.bin"); got != weights {
		t.Errorf("the file has %d bytes", len(got))
	}
	if got := p.Pull(origin.Host + "/other:v1"); got.ID != other.ID() {
		t.Errorf("image is %s", got.ID)
	}
	if spoiled.Load() != 2 {
		t.Errorf("the mirror has spoiled %d answers", spoiled.Load())
	}
}
