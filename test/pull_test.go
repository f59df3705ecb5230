package test

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Three clients pull one image. One gives up, one dies with its connection: the pull goes
// on for the third, which gets the image of the only download.
func TestPullOutlivesTwoOfThree(t *testing.T) {
	n, _ := startNode(t)
	if err := n.useRegistry(newRegistry()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.registry.close)
	image, err := bigImage(2)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.push("app:latest", image); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	n.registry.mu.Lock()
	n.registry.gate = gate
	clear(n.registry.sent)
	n.registry.mu.Unlock()

	type answer struct {
		resp *cri.PullImageResponse
		err  error
	}
	var conns [3]*grpc.ClientConn
	var cancels [3]context.CancelFunc
	var answers [3]chan answer
	for i := range conns {
		if conns[i], err = grpc.NewClient("unix://"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
		var ctx context.Context
		ctx, cancels[i] = context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancels[i]()
		answers[i] = make(chan answer, 1)
		go func() {
			resp, err := cri.NewImageServiceClient(conns[i]).PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: n.registry.host() + "/app"}})
			answers[i] <- answer{resp, err}
		}()
	}
	n.awaitPulls(t, 3)
	cancels[0]()
	conns[1].Close()
	for i, ch := range answers[:2] {
		if a := <-ch; status.Code(a.err) != codes.Canceled {
			t.Errorf("pull %d, whose client left: %v, %v", i, a.resp, a.err)
		}
	}
	n.awaitPulls(t, 1)
	close(gate)
	last := <-answers[2]
	if last.err != nil {
		t.Fatal(last.err)
	}
	resp, err := cri.NewImageServiceClient(n.conn).ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: last.resp.ImageRef}})
	if err != nil || resp.Image.GetId() != last.resp.ImageRef {
		t.Errorf("image %s: %v, %v", last.resp.ImageRef, resp.GetImage(), err)
	}
	asked := n.registry.blobs()
	if len(asked) != 2 { // the config and one layer
		t.Errorf("downloads: %v", asked)
	}
	for path, times := range asked {
		if times != 1 {
			t.Errorf("%s was asked for %d times", path, times)
		}
	}
}

// awaitPulls waits until that many callers wait for a pull, by crispd's dump of goroutines.
func (n *node) awaitPulls(t *testing.T, want int) {
	t.Helper()
	dump := filepath.Join(n.state, "goroutines.txt")
	got := -1
	for range 200 {
		os.Remove(dump)
		if err := n.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			time.Sleep(20 * time.Millisecond)
			if text, err := os.ReadFile(dump); err == nil && len(text) > 0 {
				got = bytes.Count(text, []byte("image.(*flights).join("))
				break
			}
		}
		if got == want {
			return
		}
	}
	t.Fatalf("%d callers wait for a pull, want %d", got, want)
}

// A layer that two images share is fetched once and stored once.
func TestLayersAreShared(t *testing.T) {
	n, _ := startNode(t)
	if err := n.useRegistry(newRegistry()); err != nil {
		t.Fatal(err)
	}
	base, err := bigImage(8)
	if err != nil {
		t.Fatal(err)
	}
	more, err := layer([]*tar.Header{{Name: "more", Mode: 0o644, Typeflag: tar.TypeReg}}, [][]byte{[]byte("more")})
	if err != nil {
		t.Fatal(err)
	}
	both, err := mutate.AppendLayers(base, more)
	if err != nil {
		t.Fatal(err)
	}
	images := cri.NewImageServiceClient(n.conn)
	used := func() uint64 {
		t.Helper()
		info, err := images.ImageFsInfo(t.Context(), &cri.ImageFsInfoRequest{})
		if err != nil || len(info.ImageFilesystems) == 0 {
			t.Fatalf("%v, %v", info, err)
		}
		return info.ImageFilesystems[0].UsedBytes.Value
	}
	at := []uint64{used()}
	for name, image := range map[string]v1.Image{"base:1": base, "both:1": both} {
		if err := n.push(name, image); err != nil {
			t.Fatal(err)
		}
	}
	n.registry.mu.Lock()
	clear(n.registry.sent)
	n.registry.mu.Unlock()
	for _, name := range []string{"base:1", "both:1"} {
		if _, err := images.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: n.registry.host() + "/" + name}}); err != nil {
			t.Fatal(err)
		}
		at = append(at, used())
	}
	layers, err := base.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for path, times := range n.registry.blobs() {
		if strings.HasSuffix(path, digest.String()) {
			asked += times
		}
	}
	if asked != 1 {
		t.Errorf("the common layer was fetched %d times: %v", asked, n.registry.blobs())
	}
	if first, second := at[1]-at[0], at[2]-at[1]; first < 8<<20 || second > 1<<20 {
		t.Errorf("the first image took %d bytes, the second %d", first, second)
	}
}
