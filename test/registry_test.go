package test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// testImage is the name of testbin's image in the archive.
const testImage = "crisp.test/testbin:latest"

// A fakeRegistry is a registry on loopback that can misbehave.
type fakeRegistry struct {
	server *httptest.Server
	mu     sync.Mutex
	fault  string // "", "corrupt", "hang", "truncate"
	auth   string // user:password, if required
	rate   int    // of blobs, in bytes a second; 0 = unlimited

	sent map[string]int // number of complete GETs of each path
	gate chan struct{}  // if not nil, blobs are sent once it is closed
}

func newRegistry() *fakeRegistry {
	r := unstartedRegistry()
	r.server.Start()
	return r
}

// newRegistryAt returns a registry at the address host:port.
func newRegistryAt(address string) (*fakeRegistry, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	r := unstartedRegistry()
	r.server.Listener.Close()
	r.server.Listener = l
	r.server.Start()
	return r, nil
}

func unstartedRegistry() *fakeRegistry {
	r := &fakeRegistry{sent: map[string]int{}}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		fault, auth, gate, rate := r.fault, r.auth, r.gate, r.rate
		if req.Method == http.MethodGet && req.Header.Get("Range") == "" {
			r.sent[req.URL.Path]++
		}
		r.mu.Unlock()
		if user, password, _ := req.BasicAuth(); auth != "" && user+":"+password != auth {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		blob := req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/")
		if blob && gate != nil {
			select {
			case <-gate:
			case <-req.Context().Done():
				return
			}
		}
		switch {
		case blob && fault == "corrupt":
			rec := httptest.NewRecorder()
			inner.ServeHTTP(rec, req)
			body := rec.Body.Bytes()
			if len(body) > 0 {
				body[len(body)/2] ^= 0xff
			}
			w.WriteHeader(rec.Code)
			w.Write(body)
		case blob && fault == "hang":
			select {
			case <-req.Context().Done():
			case <-time.After(time.Minute):
			}
		case blob && rate > 0:
			inner.ServeHTTP(throttled{w, r}, req)
		default:
			inner.ServeHTTP(w, req)
		}
	}))
	return r
}

func (r *fakeRegistry) host() string { return strings.TrimPrefix(r.server.URL, "http://") }

func (r *fakeRegistry) close() {
	r.server.CloseClientConnections()
	r.server.Close()
}

// blobs returns how often each blob was requested.
func (r *fakeRegistry) blobs() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := maps.Clone(r.sent)
	maps.DeleteFunc(asked, func(path string, _ int) bool { return !strings.Contains(path, "/blobs/sha256:") })
	return asked
}

// asked returns the number of requests.
func (r *fakeRegistry) asked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, times := range r.sent {
		n += times
	}
	return n
}

func (n *node) useRegistry(r *fakeRegistry) error {
	n.registry = r
	conf := fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n\n[[registry]]\nlocation = \"mirrored.test\"\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", r.host(), r.host())
	return os.WriteFile(filepath.Join(n.dir, "registries.conf"), []byte(conf), 0o644)
}

// registryCmd is:
//
//	registry start                    sets $REGISTRY; registries.conf names it as insecure
//	registry stop
//	registry push NAME [files=DIR] [config=FILE]
//	                                  testbin's image as $REGISTRY/NAME, with the files of DIR at its root
//	                                  and with the JSON of FILE in its config
//	registry push-hostile NAME PATH   an image whose layer tries to write to PATH outside of it
//	registry push-big NAME MIB        an image with that much of random bytes in it
//	registry fault ""|corrupt|hang
//	registry rate BYTES               a second, of each blob, from now on; 0 is unlimited
//	registry auth USER:PASSWORD
//	registry asked                    the number of requests
//
// and the commands of trustCmd.
func (n *node) registryCmd(ts *testscript.TestScript, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "start":
		if err := n.useRegistry(newRegistry()); err != nil {
			return err
		}
		ts.Setenv("REGISTRY", n.registry.host())
		return nil
	case n.registry == nil:
		return fmt.Errorf("no registry was started")
	case len(args) == 1 && args[0] == "stop":
		n.registry.close()
		n.registry = nil
		return nil
	case len(args) >= 2 && args[0] == "push":
		image, err := imageWith(ts, n.testbin, args[2:])
		if err != nil {
			return err
		}
		return n.push(args[1], image)
	case len(args) == 3 && args[0] == "push-hostile":
		image, err := hostileImage(args[2])
		if err != nil {
			return err
		}
		return n.push(args[1], image)
	case len(args) == 3 && args[0] == "push-big":
		var mib int
		if _, err := fmt.Sscan(args[2], &mib); err != nil {
			return err
		}
		image, err := bigImage(mib)
		if err != nil {
			return err
		}
		return n.push(args[1], image)
	case len(args) == 1 && args[0] == "asked":
		fmt.Fprintln(ts.Stdout(), n.registry.asked())
		return nil
	case len(args) == 2 && args[0] == "fault":
		n.registry.mu.Lock()
		defer n.registry.mu.Unlock()
		n.registry.fault = args[1]
		return nil
	case len(args) == 2 && args[0] == "rate":
		return n.registry.setRate(args[1])
	case len(args) == 2 && args[0] == "auth":
		n.registry.mu.Lock()
		defer n.registry.mu.Unlock()
		n.registry.auth = args[1]
		return nil
	case len(args) > 0:
		return n.trustCmd(ts, args)
	}
	return errUsage
}

func (n *node) push(ref string, image v1.Image) error {
	tag, err := name.NewTag(n.registry.host()+"/"+ref, name.Insecure)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return remote.Write(tag, image, remote.WithContext(ctx))
}

// layer returns a layer with these files, in this order.
func layer(headers []*tar.Header, contents [][]byte) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i, h := range headers {
		h.Size = int64(len(contents[i]))
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(contents[i]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
}

func imageOf(l v1.Layer) (v1.Image, error) {
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = runtime.GOARCH, "linux"
	config.Config.Entrypoint = []string{"/testbin"}
	return mutate.ConfigFile(image, config)
}

func testbinImage(testbin string) (v1.Image, error) {
	data, err := os.ReadFile(testbin)
	if err != nil {
		return nil, err
	}
	const passwd = "root:x:0:0:root:/:/testbin\nuser:x:1000:1000:user:/:/testbin\n"
	const group = "root:x:0:\nuser:x:1000:\n"
	l, err := layer(
		[]*tar.Header{
			{Name: "testbin", Mode: 0o755, Typeflag: tar.TypeReg},
			{Name: "etc/", Mode: 0o755, Typeflag: tar.TypeDir},
			{Name: "etc/passwd", Mode: 0o644, Typeflag: tar.TypeReg},
			{Name: "etc/group", Mode: 0o644, Typeflag: tar.TypeReg},
			{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir},
		},
		[][]byte{data, nil, []byte(passwd), []byte(group), nil})
	if err != nil {
		return nil, err
	}
	return imageOf(l)
}

// hostileImage returns an image that tries three ways out of the layer's directory.
func hostileImage(outside string) (v1.Image, error) {
	dir, file := filepath.Split(outside)
	l, err := layer(
		[]*tar.Header{
			{Name: "out", Linkname: dir, Typeflag: tar.TypeSymlink, Mode: 0o777},
			{Name: "out/" + file, Typeflag: tar.TypeReg, Mode: 0o644},
			{Name: "../../../../../../../../.." + outside, Typeflag: tar.TypeReg, Mode: 0o644},
			{Name: outside, Typeflag: tar.TypeReg, Mode: 0o644},
		},
		[][]byte{nil, []byte("by symlink"), []byte("by dots"), []byte("by absolute name")})
	if err != nil {
		return nil, err
	}
	return imageOf(l)
}

func bigImage(mib int) (v1.Image, error) {
	data := make([]byte, mib<<20)
	if _, err := unix.Getrandom(data[:min(len(data), 1<<20)], 0); err != nil {
		return nil, err
	}
	for i := 1 << 20; i < len(data); i++ {
		data[i] = data[i-(1<<20)] ^ byte(i>>20)
	}
	l, err := layer([]*tar.Header{{Name: "big", Mode: 0o644, Typeflag: tar.TypeReg}}, [][]byte{data})
	if err != nil {
		return nil, err
	}
	return imageOf(l)
}

func writeArchive(path, testbin string) error {
	image, err := testbinImage(testbin)
	if err != nil {
		return err
	}
	tag, err := name.NewTag(testImage)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, image)
}

// httpCmd is: http get URL — prints the body. It retries for a while, since a server in a container
// needs a moment to start listening. Or: http serve FILE
func (n *node) httpCmd(ts *testscript.TestScript, args []string) error {
	if len(args) == 2 && args[0] == "serve" {
		return serveHTTP(ts, args[1])
	}
	if len(args) != 2 || args[0] != "get" {
		return errUsage
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var last error
	for range 1000 {
		resp, err := client.Get(args[1])
		if err != nil {
			last = err
			time.Sleep(50 * time.Millisecond)
			continue
		}
		defer resp.Body.Close()
		_, err = io.Copy(ts.Stdout(), resp.Body)
		return err
	}
	return last
}
