package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// registryServer is a registry on loopback with images of testbin: base, which stays on the node,
// and extra0 …, which are pulled and removed.
type registryServer struct {
	server *httptest.Server
	stall  atomic.Bool // layers of extra images are not sent
}

const extraImages = 4

func newRegistry(testbin string) (*registryServer, error) {
	r := new(registryServer)
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.stall.Load() && req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/extra") && strings.Contains(req.URL.Path, "/blobs/") {
			<-req.Context().Done()
			return
		}
		inner.ServeHTTP(w, req)
	}))
	program, err := os.ReadFile(testbin)
	if err != nil {
		return nil, err
	}
	base, err := layerOf("testbin", 0o755, program)
	if err != nil {
		return nil, err
	}
	tmp, err := layerOf("tmp/", 0o1777, nil)
	if err != nil {
		return nil, err
	}
	if err := r.push("base", base, tmp); err != nil {
		return nil, err
	}
	for i := range extraImages {
		data := make([]byte, 2<<20)
		for j := range data {
			data[j] = byte(rand.Uint32())
		}
		own, err := layerOf("own", 0o644, data)
		if err != nil {
			return nil, err
		}
		if err := r.push(fmt.Sprintf("extra%d", i), base, tmp, own); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *registryServer) host() string           { return strings.TrimPrefix(r.server.URL, "http://") }
func (r *registryServer) ref(repo string) string { return r.host() + "/" + repo + ":latest" }
func (r *registryServer) close()                 { r.server.CloseClientConnections(); r.server.Close() }

func (r *registryServer) push(image string, layers ...v1.Layer) error {
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = runtime.GOARCH, "linux"
	config.Config.Entrypoint = []string{"/testbin"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return err
	}
	tag, err := name.NewTag(r.ref(image), name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(tag, img)
}

// layerOf returns a layer with one file, or a directory if its name ends with a slash.
func layerOf(file string, mode int64, data []byte) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	h := &tar.Header{Name: file, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(data))}
	if strings.HasSuffix(file, "/") {
		h.Typeflag = tar.TypeDir
	}
	if err := w.WriteHeader(h); err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
}
