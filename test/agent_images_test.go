package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// When the disk of the images is too full, unused images are removed until it is not: not
// those of containers, those mounted by pods, or pinned ones.
func TestAgentImageGC(t *testing.T) {
	disk := ""
	n, _ := startNode(t, func(n *node, config string) error {
		disk = filepath.Join(n.dir, "disk")
		if err := os.Mkdir(disk, 0o700); err != nil {
			return err
		}
		if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=100m"); err != nil {
			return err
		}
		n.unmountAll = append(n.unmountAll, disk)
		n.root = filepath.Join(disk, "root")
		return os.WriteFile(config, []byte("[image]\npinned = [\"*/pinned:*\"]\n"), 0o644)
	})
	if err := n.useRegistry(newRegistry()); err != nil {
		t.Fatal(err)
	}
	images := cri.NewImageServiceClient(n.conn)
	pull := func(name string, mib int) string {
		t.Helper()
		image, err := bigImage(mib)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.push(name, image); err != nil {
			t.Fatal(err)
		}
		ref := n.registry.host() + "/" + name
		if _, err := images.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
		return ref
	}
	percent := func() int {
		t.Helper()
		var s syscall.Statfs_t
		if err := syscall.Statfs(disk, &s); err != nil {
			t.Fatal(err)
		}
		return 100 - int(s.Bavail*100/s.Blocks)
	}
	there := func() (tags []string) {
		t.Helper()
		list, err := images.ListImages(t.Context(), &cri.ListImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list.Images {
			if i.Pinned != strings.Contains(strings.Join(i.RepoTags, " "), "/pinned:") {
				t.Errorf("image %v", i)
			}
			tags = append(tags, i.RepoTags...)
		}
		return tags
	}
	keep := []string{testImage, pull("pinned:1", 8), pull("mounted:1", 8)}
	l := labOn(t, n, "--image-gc-high-threshold", "100", "--eviction-hard", "")
	user := l.pick(t, "user")
	user.write(fmt.Sprintf(`
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: IMAGE, args: [sleep, for-ever], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, image: {reference: "%s", pullPolicy: Never}}]
`, keep[2]))
	user.awaitReady()
	var unused []string
	for percent() < 86 {
		unused = append(unused, pull(fmt.Sprintf("unused%d:1", len(unused)), 6))
	}
	// The next agent collects at its start.
	l.end(syscall.SIGTERM)
	l.flags = []string{"--image-gc-high-threshold", "85", "--image-gc-low-threshold", "80", "--minimum-image-ttl-duration", "0s", "--eviction-hard", ""}
	l.start()
	l.until(func() bool { return percent() <= 80 }, "the disk is less full")
	tags, left := there(), 0
	for _, ref := range keep {
		if !slices.Contains(tags, ref) {
			t.Errorf("%s was removed, left are %q", ref, tags)
		}
	}
	for _, ref := range unused {
		if slices.Contains(tags, ref) {
			left++
		}
	}
	if left == 0 || left == len(unused) {
		t.Errorf("%d of %d unused images are left: %q", left, len(unused), tags)
	}
	// Images in use stay, however little space is left.
	l.end(syscall.SIGTERM)
	l.flags = []string{"--image-gc-high-threshold", "10", "--image-gc-low-threshold", "1", "--minimum-image-ttl-duration", "0s", "--eviction-hard", ""}
	l.start()
	slices.Sort(keep)
	l.until(func() bool {
		tags = there()
		slices.Sort(tags)
		return len(tags) <= len(keep)
	}, "nothing unused is left")
	if !slices.Equal(tags, keep) {
		t.Errorf("images are %q, want %q", tags, keep)
	}
	l.until(func() bool {
		out, _ := l.agentProcess.crisp("", "events")
		return strings.Contains(out, "FreeDiskSpaceFailed")
	}, "the node says that it is not enough")
	if s := user.status("app"); s.RestartCount != 0 || s.State.Running == nil {
		t.Errorf("the container is %+v", s)
	}
	l.clear()
}
