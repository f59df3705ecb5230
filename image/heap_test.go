package image_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/crisp-cri/crisp/test/testheap"
)

// perImage bounds what the heap keeps for an image with two layers of its own and a config of 5 KB.
const perImage = 26 << 10

// live is testheap.Live without what pools keep, until the second collection.
func live() uint64 {
	testheap.Live()
	return testheap.Live()
}

// A node has hundreds of images, which nothing forgets before the kubelet's garbage collection.
func TestHeapPerImage(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	const first, more = 5, 60
	for i := range first + more {
		cfg := v1.Image{Config: v1.ImageConfig{Labels: map[string]string{}}}
		for j := range 20 {
			cfg.History = append(cfg.History, v1.History{CreatedBy: fmt.Sprintf("RUN %d %s", i, strings.Repeat("x", 200))})
			cfg.Config.Labels[fmt.Sprint("label", j)] = fmt.Sprint("value ", i)
		}
		img := imagetest.BuildOf(t, "gzip", cfg, imagetest.TarOf(t, map[string]string{fmt.Sprint("a", i): "a"}), imagetest.TarOf(t, map[string]string{fmt.Sprint("b", i): "b"}))
		reg.Push(fmt.Sprint("app", i), "v1", img)
	}
	pull := func(from, to int) {
		for i := from; i < to; i++ {
			p.Pull(fmt.Sprintf("%s/app%d:v1", reg.Host, i))
		}
		reg.Asked("") // or it keeps all requests
	}
	pull(0, first)
	without := live()
	pull(first, first+more)
	check := func(when string) {
		t.Helper()
		with := live()
		kept := with - min(with, without) // a test before this one may have kept more until now
		t.Logf("%s: %d bytes an image", when, kept/more)
		testheap.Bound{PerByte: perImage}.Check(t, when+", bytes kept for images", kept, more)
	}
	check("after the pulls")
	// On one P, the runtime keeps a timer that was stopped while most others are running.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 100 {
		defer time.AfterFunc(time.Hour, func() {}).Stop()
	}
	p.Reopen(image.Options{})
	check("after a restart")
	if n := len(p.Store.List()); n != first+more {
		t.Errorf("%d images are left", n)
	}
}

// A pull keeps nothing of what it works with: windows of decompression, chunks, names.
func TestPullKeepsNoMemory(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	r := rand.New(rand.NewPCG(35, 7))
	for _, compression := range []string{"gzip", "zstd", "plain"} {
		var layers [][]byte
		for i := range 3 {
			data := make([]byte, 8<<20)
			for j := range data {
				data[j] = byte(r.Uint32()) & 15
			}
			files := map[string]string{fmt.Sprint("big", i): string(data)}
			for j := range 500 {
				files[fmt.Sprintf("dir%d/file%d", i, j)] = "x"
			}
			layers = append(layers, imagetest.TarOf(t, files))
		}
		img := imagetest.BuildOf(t, compression, v1.Image{}, layers...)
		img.Plain = nil
		reg.Push(compression, "v1", img)
	}
	for i, compression := range []string{"gzip", "gzip", "zstd", "plain"} {
		before := live()
		img, err := p.Store.Pull(t.Context(), reg.Host+"/"+compression+":v1", registry.Caller{})
		if err != nil {
			t.Fatal(err)
		}
		after := live()
		// The first has what there is once, such as the connection.
		if i > 0 {
			testheap.Bound{Base: 512 << 10}.Check(t, "bytes kept after a pull of "+compression, after-min(before, after), len(img.Config.RootFS.DiffIDs))
		}
		if err := p.Store.Remove(t.Context(), img.ID); err != nil {
			t.Fatal(err)
		}
		reg.Asked("")
	}
}
