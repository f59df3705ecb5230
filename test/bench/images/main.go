// Command images makes the images of a bench and serves them from a registry on loopback until it gets SIGTERM.
//
//	images -busybox /bin/busybox -dir DIR [-listen 127.0.0.1:5000]
//
//	HOST/bench/busybox:1   a static busybox, with links sleep, true and sh; its containers can run as any user
//	HOST/bench/pause:1     the image of containerd's pause containers
//	HOST/bench/big:1       the image for pulls: 5 gzip layers, 19 000 files, 222 MB compressed, 475 MB unpacked
//	HOST/bench/layer:1     the image for pulls of one large layer: the same kind of files, 40 000, 1 GB unpacked
//
// The files of the big images are generated from a seed, so that it is the same everywhere: sizes are log-normal, as in real trees, and
// most files are text of words whose frequencies follow Zipf's law, which gzip makes three times smaller; one in five cannot be
// compressed. The images are kept in DIR as OCI image layouts, so that only the first start takes the time to make them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	busybox := flag.String("busybox", "/bin/busybox", "static busybox `file` of the small image")
	dir := flag.String("dir", "", "`directory` where the images are kept")
	listen := flag.String("listen", "127.0.0.1:5000", "`address` of the registry")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *busybox, *dir, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, busybox, dir, listen string) error {
	if dir == "" {
		return errors.New("-dir is missing")
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer server.Close()
	for repository, build := range map[string]func() (v1.Image, error){
		"bench/busybox": func() (v1.Image, error) { return small(busybox) },
		"bench/pause":   pause,
		"bench/big":     big,
		"bench/layer":   largeLayer,
	} {
		image, err := kept(filepath.Join(dir, filepath.Base(repository)), build)
		if err != nil {
			return fmt.Errorf("image %s: %w", repository, err)
		}
		if err := push(ctx, l.Addr().String()+"/"+repository+":1", image); err != nil {
			return err
		}
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return nil
	}
}

// kept returns the image of a layout, and makes it if it does not exist. An incomplete layout is
// not used: it gets its name when it is complete.
func kept(dir string, build func() (v1.Image, error)) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if errors.Is(err, os.ErrNotExist) {
		image, err := build()
		if err != nil {
			return nil, err
		}
		part := dir + ".part"
		if err := errors.Join(os.RemoveAll(part), os.MkdirAll(part, 0o755)); err != nil {
			return nil, err
		}
		path, err := layout.Write(part, empty.Index)
		if err != nil {
			return nil, err
		}
		if err := path.AppendImage(image); err != nil {
			return nil, err
		}
		if err := os.Rename(part, dir); err != nil {
			return nil, err
		}
		index, err = layout.ImageIndexFromPath(dir)
		if err != nil {
			return nil, err
		}
		return first(index)
	}
	if err != nil {
		return nil, err
	}
	return first(index)
}

func first(index v1.ImageIndex) (v1.Image, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("layout has %d images, want 1", len(manifest.Manifests))
	}
	return index.Image(manifest.Manifests[0].Digest)
}

// push pushes an image and prints its reference.
func push(ctx context.Context, ref string, image v1.Image) error {
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := remote.Write(tag, image, remote.WithContext(ctx)); err != nil {
		return err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	var size int64
	for _, l := range manifest.Layers {
		size += l.Size
	}
	fmt.Printf("%s %s, %d layers, %.1f MB compressed\n", ref, digest, len(manifest.Layers), float64(size)/1e6)
	return nil
}
