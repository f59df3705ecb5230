package server

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkListContainerStats is the kubelet's call of every ten seconds on a full node. The amount
// of data that the containers have written must not matter: both cases take equally long.
func BenchmarkListContainerStats(b *testing.B) {
	for _, files := range []int{0, 20_000} {
		b.Run(fmt.Sprint("files=", files), func(b *testing.B) {
			n := newNode(b)
			n.countIn(b, "v1")
			sb := n.run(b, pod("a"))
			for i := range 100 {
				id := n.begin(b, sb, forever(fmt.Sprint("c", i)))
				fill(b, filepath.Join(n.store.dir, id), files/100)
			}
			for b.Loop() {
				resp, err := n.ListContainerStats(b.Context(), &cri.ListContainerStatsRequest{})
				if err != nil || len(resp.Stats) != 100 {
					b.Fatalf("%d statistics, %v", len(resp.GetStats()), err)
				}
			}
		})
	}
}

// BenchmarkListPodSandboxMetrics is the same for a scrape of all metrics.
func BenchmarkListPodSandboxMetrics(b *testing.B) {
	n := newNode(b)
	n.countIn(b, "v1")
	sb := n.run(b, pod("a"))
	for i := range 100 {
		n.begin(b, sb, forever(fmt.Sprint("c", i)))
	}
	for b.Loop() {
		resp, err := n.ListPodSandboxMetrics(b.Context(), &cri.ListPodSandboxMetricsRequest{})
		if err != nil || len(resp.PodMetrics) != 1 {
			b.Fatalf("metrics of %d sandboxes, %v", len(resp.GetPodMetrics()), err)
		}
	}
}

// fill writes that many files below dir.
func fill(b *testing.B, dir string, files int) {
	b.Helper()
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte("x"), 0o600); err != nil {
			b.Fatal(err)
		}
	}
}
