package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Built is an image that a test made.
type Built struct {
	Config   []byte
	Blobs    [][]byte // of the layers, compressed
	Plain    [][]byte
	Manifest []byte
	Desc     v1.Descriptor
}

// ID returns the ID of the image in a store.
func (b *Built) ID() string { return digest.FromBytes(b.Config).String() }

// Build makes an image with one layer for each text, which is the content of the
// file "layer<n>" in it and of the file "top".
func Build(t testing.TB, compression string, texts ...string) *Built {
	t.Helper()
	var layers [][]byte
	for i, text := range texts {
		layers = append(layers, TarOf(t, map[string]string{fmt.Sprintf("layer%d", i): text, "top": text}))
	}
	return BuildOf(t, compression, v1.Image{}, layers...)
}

// BuildOf makes an image with these layers.
func BuildOf(t testing.TB, compression string, cfg v1.Image, layers ...[]byte) *Built {
	t.Helper()
	b := &Built{Plain: layers}
	if cfg.OS == "" {
		cfg.OS, cfg.Architecture = "linux", "amd64"
	}
	cfg.RootFS.Type = "layers"
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	for _, layer := range layers {
		data, kind := Compress(t, compression, layer)
		b.Blobs = append(b.Blobs, data)
		cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, digest.FromBytes(layer))
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: kind, Digest: digest.FromBytes(data), Size: int64(len(data))})
	}
	b.Config = MustJSON(t, cfg)
	m.Config = v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(b.Config), Size: int64(len(b.Config))}
	b.Manifest = MustJSON(t, m)
	b.Desc = v1.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(b.Manifest), Size: int64(len(b.Manifest)),
		Platform: &v1.Platform{OS: cfg.OS, Architecture: cfg.Architecture}}
	return b
}

// Compress returns data compressed by gzip, zstd, or "plain", not at all, and the media
// type of such a layer.
func Compress(t testing.TB, compression string, data []byte) ([]byte, string) {
	t.Helper()
	var buf bytes.Buffer
	var w io.WriteCloser
	kind := v1.MediaTypeImageLayer
	switch compression {
	case "plain":
		return data, kind
	case "gzip":
		w, kind = gzip.NewWriter(&buf), v1.MediaTypeImageLayerGzip
	case "zstd":
		z, err := zstd.NewWriter(&buf)
		if err != nil {
			t.Fatal(err)
		}
		w, kind = z, v1.MediaTypeImageLayerZstd
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), kind
}

// TarOf makes a tar stream of files, by name.
func TarOf(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, name := range slices.Sorted(maps.Keys(files)) { // the digest must not vary
		content := files[name]
		hdr := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(1_500_000_000, 0)}
		if strings.HasSuffix(name, "/") {
			hdr.Typeflag, hdr.Mode = tar.TypeDir, 0o755
		}
		if err := tw.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// MustJSON encodes v as JSON.
func MustJSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// DigestOf returns the SHA-256 of data, in hex.
func DigestOf(data []byte) string { return digest.FromBytes(data).Encoded() }
