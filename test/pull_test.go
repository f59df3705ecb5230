package test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Three clients pull one image. One gives up, one dies with its connection: the
// pull goes on for the third, who gets the image of the only download there was.
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
	if len(asked) != 2 { // the configuration and one layer
		t.Errorf("downloads: %v", asked)
	}
	for path, times := range asked {
		if times != 1 {
			t.Errorf("%s was asked for %d times", path, times)
		}
	}
}

// awaitPulls waits until so many callers wait for a pull: those that crispd has in
// its dump of goroutines.
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
