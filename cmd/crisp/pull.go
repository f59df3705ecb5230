package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/pull"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/pullapi"
	"github.com/crisp-cri/crisp/internal/pullapi/pullclient"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func pullCommand(c *cli) *cobra.Command {
	var progress string
	cmd := &cobra.Command{Use: "pull IMAGE [--progress plain]", Args: takes(1, 1, "pull takes one image"), Short: "pull an image"}
	cmd.Flags().StringVar(&progress, "progress", "auto", "`how` to show progress: auto (bars, on a terminal), plain (lines) or none")
	return runs(cmd, func(rest []string) error {
		return c.pull(rest[0], progress)
	})
}

// progressKinds has the ways to show the progress of a pull.
var progressKinds = []string{"auto", "plain", "none"}

// pull pulls an image, and shows the progress on stderr.
func (c *cli) pull(image, progress string) error {
	if !slices.Contains(progressKinds, progress) {
		return usageError("--progress %s: want one of %v", progress, progressKinds)
	}
	if err := c.connect(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		c.showPull(ctx, image, progress)
	}()
	ref, err := c.store.PullImage(c.ctx, &cri.ImageSpec{Image: image, UserSpecifiedImage: image}, nil, nil)
	cancel()
	<-shown
	if err != nil {
		return criruntime.Fault(err) // it names the image
	}
	fmt.Fprintln(c.stdout, ref)
	return nil
}

// How often a pull's progress is printed: bars are redrawn, lines accumulate.
const (
	barInterval  = 200 * time.Millisecond
	lineInterval = time.Second
)

// pullBar is the width of a layer's bar in characters.
const pullBar = 40

// showPull shows the progress of an image's pull until ctx ends. If the runtime does not report it,
// showPull prints less.
func (c *cli) showPull(ctx context.Context, image, progress string) {
	f := terminal(c.stderr)
	bars := progress == "auto" && f != nil
	if progress == "none" || progress == "auto" && !bars {
		return
	}
	conn, err := c.dialRuntime()
	if err != nil {
		return
	}
	defer conn.Close()
	r := pullapi.Request{Image: image, Interval: lineInterval}
	if bars {
		r.Interval = barInterval
	}
	drawn := &drawing{w: c.stderr, width: width(f)}
	_ = pullclient.Watch(ctx, conn, r, func(list []pulls.Pull) error {
		switch {
		case len(list) == 0:
		case bars:
			drawn.show(list[0].Bars(pullBar))
		default:
			fmt.Fprintf(c.stderr, "%s: %s\n", list[0].Image, strings.TrimSpace(list[0].String()+" "+list[0].Source()))
		}
		return nil
	})
	drawn.show(nil)
}

// width returns the number of columns of a terminal.
func width(f *os.File) int {
	if f != nil {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// A drawing is a block of lines on a terminal, which is redrawn in place.
type drawing struct {
	w     io.Writer
	width int // of the terminal, in columns
	lines int
}

// mostLines is the maximum number of lines: a line that has scrolled away cannot be redrawn.
const mostLines = 16

// show replaces the previous lines. The control sequences are those of ECMA-48: cursor up, and
// erase to the end of the screen.
func (d *drawing) show(lines []string) {
	if d.lines > 0 {
		fmt.Fprintf(d.w, "\x1b[%dA\x1b[J", d.lines)
	}
	if n := len(lines); n > mostLines { // the last line summarizes all
		lines = lines[n-mostLines:]
	}
	for _, line := range lines {
		fmt.Fprintf(d.w, "%.*s\n", d.width, line) // a line that wraps would become two
	}
	d.lines = len(lines)
}

// pulling returns the pull progress of pods that wait for an image, by namespace/name. It asks the
// runtime only if a pod waits, and returns none if the runtime does not report progress.
func (c *cli) pulling(list []*v1.Pod) map[string]string {
	if !slices.ContainsFunc(list, waits) {
		return nil
	}
	under := c.pulls()
	texts := map[string]string{}
	for _, pod := range list {
		key := podsync.KeyOf(pod).String()
		if p, ok := pulls.Of(under, key); ok && waits(pod) {
			texts[key] = "Pulling " + p.String()
		}
	}
	return texts
}

// waits reports whether a pod waits for something, possibly an image.
func waits(pod *v1.Pod) bool {
	ready, all := status.Count(pod)
	return ready < all && !podsync.Terminal(&pod.Status) && pod.DeletionTimestamp == nil
}

// pullOf returns the progress of the pull that a pod waits for; "" without one.
func (c *cli) pullOf(pod *v1.Pod) string {
	if pod.Status.Phase == v1.PodRunning {
		return ""
	}
	p, ok := pulls.Of(c.pulls(), podsync.KeyOf(pod).String())
	if !ok {
		return ""
	}
	return strings.TrimSpace(p.Image + ": " + p.String() + " " + p.Source())
}

// pulls returns the running pulls; none if the runtime does not report them.
func (c *cli) pulls() []pulls.Pull {
	watcher := pull.NewWatcher(c.endpoint)
	defer watcher.Close()
	return watcher.List(c.ctx)
}

// dialRuntime connects to the runtime's socket, for services other than CRI.
func (c *cli) dialRuntime() (*grpc.ClientConn, error) {
	return grpc.NewClient(c.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
}

// podsIn converts objects to pods.
func podsIn(items []unstructured.Unstructured) []*v1.Pod {
	var pods []*v1.Pod
	for _, u := range items {
		pod := &v1.Pod{}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, pod) == nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

// A pullWatch adds the pull progress of waiting pods to a watch: a line for each change of the
// text, at most one per second.
type pullWatch struct {
	mu    sync.Mutex
	show  func(u unstructured.Unstructured, pulling string) error // guarded by mu
	pods  map[string]unstructured.Unstructured                    // those that wait, by namespace/name; guarded by mu
	shown map[string]string                                       // the last text of those that wait for a pull; guarded by mu
}

// changed prints a pod that has changed.
func (w *pullWatch) changed(u unstructured.Unstructured) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := u.GetNamespace() + "/" + u.GetName()
	if pods := podsIn([]unstructured.Unstructured{u}); len(pods) == 1 && waits(pods[0]) {
		w.pods[key] = u
	} else {
		delete(w.pods, key)
	}
	delete(w.shown, key)
	return w.show(u, "")
}

// pulling prints the pods whose pulls have made progress.
func (w *pullWatch) pulling(under []pulls.Pull) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(w.pods)) {
		p, ok := pulls.Of(under, key)
		if !ok {
			delete(w.shown, key) // the pod's status has the outcome
			continue
		}
		if text := "Pulling " + p.String(); text != w.shown[key] {
			w.shown[key] = text
			if err := w.show(w.pods[key], text); err != nil {
				return err
			}
		}
	}
	return nil
}

// pullsAgain is the pause before a runtime that did not report pulls is asked again.
const pullsAgain = 2 * time.Second

// watchPulls prints the progress of pulls until ctx ends. It keeps trying: the runtime may not
// report pulls, or may be restarting.
func (c *cli) watchPulls(ctx context.Context, w *pullWatch) {
	conn, err := c.dialRuntime()
	if err != nil {
		return
	}
	defer conn.Close()
	for ctx.Err() == nil {
		var shown error
		_ = pullclient.Watch(ctx, conn, pullapi.Request{Interval: time.Second}, func(list []pulls.Pull) error {
			shown = w.pulling(list)
			return shown
		})
		if shown != nil {
			return // the output is closed, which the next change of a pod will find too
		}
		select {
		case <-ctx.Done():
		case <-time.After(pullsAgain):
		}
	}
}
