package image_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/test/imagetest"
)

// BenchmarkPull pulls an image of 1 GB in one layer and in five, with files of 16 MB and of 16 KB, from a
// registry on loopback in the same process. B/s is of the unpacked bytes, and the memory that of the
// whole process.
func BenchmarkPull(b *testing.B) {
	for _, files := range []int{16 << 20, 16 << 10} {
		for _, layers := range []int{1, 5} {
			b.Run(fmt.Sprintf("layers=%d/files=%dKiB", layers, files>>10), func(b *testing.B) { benchmarkPull(b, layers, files) })
		}
	}
}

func benchmarkPull(b *testing.B, layers, files int) {
	reg := imagetest.NewRegistry(b)
	img, size := bigImage(b, layers, 1<<30/layers, files)
	reg.Push("app", "v1", img)
	img = nil
	p := imagetest.NewPlace(b, reg)
	ref := reg.Host + "/app:v1"
	b.SetBytes(size)
	var before, after unix.Rusage
	var cpu int64
	for b.Loop() {
		b.StopTimer()
		runtime.GC()
		unix.Sync()
		unix.Getrusage(unix.RUSAGE_SELF, &before)
		b.StartTimer()
		got, err := p.Store.Pull(b.Context(), ref, registry.Caller{})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		unix.Getrusage(unix.RUSAGE_SELF, &after)
		cpu += after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		if err := p.Store.Remove(b.Context(), got.ID); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(cpu)/1e9/float64(b.N), "CPU-s/op")
}

// bigImage returns an image of layers with about size bytes each, of files of the size fileSize, and the size of all.
// A block of 32 MiB is compressed once and repeated, as members of one gzip stream.
func bigImage(b *testing.B, layers, size, fileSize int) (*imagetest.Built, int64) {
	b.Helper()
	const block = 32 << 20
	built := &imagetest.Built{}
	cfg := v1.Image{Platform: v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, RootFS: v1.RootFS{Type: "layers"}}
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	var total int64
	for i := range layers {
		var packed bytes.Buffer
		diff := digest.Canonical.Digester()
		add := func(plain []byte, times int) {
			one, _ := imagetest.Compress(b, "gzip", plain)
			for range times {
				packed.Write(one)
				diff.Hash().Write(plain)
				total += int64(len(plain))
			}
		}
		// The names in the blocks are the same, so that the last one's files remain: each is written.
		add(tarBlock(b, uint64(i), block, fileSize), size/block)
		add(make([]byte, 1024), 1)
		data := packed.Bytes()
		built.Blobs = append(built.Blobs, data)
		cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, diff.Digest())
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: v1.MediaTypeImageLayerGzip, Digest: digest.FromBytes(data), Size: int64(len(data))})
	}
	built.Config = imagetest.MustJSON(b, cfg)
	m.Config = v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(built.Config), Size: int64(len(built.Config))}
	built.Manifest = imagetest.MustJSON(b, m)
	built.Desc = v1.Descriptor{MediaType: m.MediaType}
	return built, total
}

// tarBlock returns entries of about size bytes, without the end of an archive: words, a third of
// which gzip leaves, as of real layers.
func tarBlock(b *testing.B, seed uint64, size, fileSize int) []byte {
	b.Helper()
	r := rand.New(rand.NewPCG(seed, 35))
	words := make([][]byte, 4096)
	for i := range words {
		words[i] = fmt.Appendf(nil, "%x ", r.Uint64()>>r.IntN(56))
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := 0; buf.Len() < size; i++ {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("dir%d/file%d", i/40, i), Mode: 0o644, Size: int64(fileSize)}); err != nil {
			b.Fatal(err)
		}
		content := make([]byte, 0, fileSize+32)
		for len(content) < fileSize {
			content = append(content, words[int(float64(len(words))*r.Float64()*r.Float64()*r.Float64())]...)
		}
		if _, err := w.Write(content[:fileSize]); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	return buf.Bytes()
}
