package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const (
	layers        = 5
	filesPerLayer = 3800
	largeFiles    = 40000   // of the image with one layer
	medianSize    = 4980    // bytes
	sizeSigma     = 1.8     // of the logarithm of the size
	maxSize       = 8 << 20 // bytes
	filesPerDir   = 40
)

// small returns an image with one layer: busybox, and links for the applets that a bench runs.
func small(busybox string) (v1.Image, error) {
	data, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	return imageOf(nil, []func(*tar.Writer) error{func(w *tar.Writer) error {
		for _, dir := range []string{"bin/", "dev/", "etc/", "proc/", "sys/", "tmp/"} {
			if err := add(w, tar.Header{Name: dir, Mode: 0o755, Typeflag: tar.TypeDir}, nil); err != nil {
				return err
			}
		}
		if err := add(w, tar.Header{Name: "bin/busybox", Mode: 0o755, Typeflag: tar.TypeReg}, data); err != nil {
			return err
		}
		for _, applet := range []string{"sh", "sleep", "true"} {
			if err := add(w, tar.Header{Name: "bin/" + applet, Linkname: "bin/busybox", Mode: 0o755, Typeflag: tar.TypeLink}, nil); err != nil {
				return err
			}
		}
		return add(w, tar.Header{Name: "etc/passwd", Mode: 0o644, Typeflag: tar.TypeReg}, []byte("root:x:0:0:root:/:/bin/sh\n"))
	}})
}

// pauseSource is the program of containerd's pause containers.
const pauseSource = `
#include <signal.h>
#include <unistd.h>
static void quit(int s) { _exit(0); }
int main(void) { signal(SIGTERM, quit); signal(SIGINT, quit); for (;;) pause(); }
`

// pause returns an image with one static program, which is compiled here.
func pause() (v1.Image, error) {
	dir, err := os.MkdirTemp("", "crisp-bench-pause-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "pause")
	cc := exec.Command("gcc", "-static", "-Os", "-s", "-x", "c", "-o", program, "-")
	cc.Stdin = strings.NewReader(pauseSource)
	if out, err := cc.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w: %s", err, out)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	return imageOf([]string{"/pause"}, []func(*tar.Writer) error{func(w *tar.Writer) error {
		return add(w, tar.Header{Name: "pause", Mode: 0o755, Typeflag: tar.TypeReg}, data)
	}})
}

func big() (v1.Image, error) {
	var all []func(*tar.Writer) error
	for i := range layers {
		all = append(all, func(w *tar.Writer) error { return bigLayer(w, uint64(i), filesPerLayer) })
	}
	return imageOf(nil, all)
}

// largeLayer returns an image with one layer, of about a gigabyte.
func largeLayer() (v1.Image, error) {
	return imageOf(nil, []func(*tar.Writer) error{func(w *tar.Writer) error { return bigLayer(w, layers, largeFiles) }})
}

// bigLayer writes a layer with that many files, in directories of filesPerDir.
func bigLayer(w *tar.Writer, seed uint64, files int) error {
	r := rand.New(rand.NewPCG(seed, 226))
	text := newText(r)
	var content []byte
	for i := range files {
		dir := fmt.Sprintf("opt/layer%d/dir%03d/", seed, i/filesPerDir)
		if i%filesPerDir == 0 {
			if err := add(w, tar.Header{Name: dir, Mode: 0o755, Typeflag: tar.TypeDir}, nil); err != nil {
				return err
			}
		}
		size := int(min(medianSize*math.Exp(sizeSigma*r.NormFloat64()), maxSize))
		content = content[:0]
		if r.IntN(5) == 0 {
			for len(content) < size {
				content = append(content, byte(r.Uint32()))
			}
		} else {
			content = text.append(content, size)
		}
		if err := add(w, tar.Header{Name: fmt.Sprintf("%sfile%02d", dir, i%filesPerDir), Mode: 0o644, Typeflag: tar.TypeReg}, content); err != nil {
			return err
		}
	}
	return nil
}

// text generates text of made-up words.
type text struct {
	words [][]byte
	next  *rand.Zipf
}

func newText(r *rand.Rand) *text {
	t := &text{next: rand.NewZipf(r, 1.1, 2, 1<<13-1)}
	for range 1 << 13 {
		word := make([]byte, 2+r.IntN(9), 12)
		for i := range word {
			word[i] = 'a' + byte(r.IntN(26))
		}
		t.words = append(t.words, append(word, ' '))
	}
	return t
}

func (t *text) append(to []byte, size int) []byte {
	for len(to) < size {
		to = append(to, t.words[t.next.Uint64()]...)
	}
	return to[:size]
}

func add(w *tar.Writer, h tar.Header, content []byte) error {
	h.Size = int64(len(content))
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// imageOf returns an image of the layers that these functions write, compressed as by docker and
// buildkit.
func imageOf(entrypoint []string, all []func(*tar.Writer) error) (v1.Image, error) {
	image := empty.Image
	for _, write := range all {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		if err := write(w); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil },
			tarball.WithCompressionLevel(gzip.DefaultCompression))
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, l); err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = runtime.GOARCH, "linux"
	config.Config.Entrypoint = entrypoint
	config.Config.Env = []string{"PATH=/bin"}
	return mutate.ConfigFile(image, config)
}
