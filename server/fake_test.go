package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// fakeImages is a store with one image, whose file systems are directories.
type fakeImages struct {
	dir string

	mu      sync.Mutex
	list    []image.Image
	mounts  map[string]bool
	unmount func(key string) // if not nil, called by each Unmount
	gate    chan struct{}    // if not nil, a mount waits until it is closed
	blocked chan struct{}    // receives a value for each mount that waits
	fail    map[string]error // by method
	pulled  []registry.Caller
	coming  []pulls.Pull // Pulls and RecentPulls
}

func newFakeImages(t testing.TB) *fakeImages {
	return &fakeImages{
		dir: t.TempDir(), mounts: map[string]bool{}, fail: map[string]error{},
		list: []image.Image{{
			ID: testID, Tags: []string{testImage}, Digests: []string{testDigest}, Size: 1 << 20,
			Config: v1.Image{Config: v1.ImageConfig{
				Entrypoint: []string{"/testbin"}, User: "web:staff", StopSignal: "SIGQUIT",
				Env: []string{"FROM=image"},
			}},
		}},
	}
}

// failing sets the error of a method; nil means success.
func (f *fakeImages) failing(method string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[method] = err
}

func (f *fakeImages) failure(method string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return ocitest.Failure(f.fail[method])
}

func (f *fakeImages) Allowed(context.Context, string, string, string) error {
	return f.failure("Allowed")
}

func (f *fakeImages) Pull(ctx context.Context, ref string, as registry.Caller) (image.Image, error) {
	if err := f.failure("Pull"); err != nil {
		return image.Image{}, err
	}
	f.mu.Lock()
	f.pulled = append(f.pulled, as)
	f.mu.Unlock()
	return f.Get(ref)
}

func (f *fakeImages) Pulls() []pulls.Pull {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.coming), func(p pulls.Pull) bool { return !p.Ended.IsZero() })
}

func (f *fakeImages) RecentPulls() []pulls.Pull {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.coming), func(p pulls.Pull) bool { return p.Ended.IsZero() })
}

func (f *fakeImages) Load(_ context.Context, r io.Reader) ([]image.Image, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if string(b) == "" {
		return nil, nil
	}
	img := image.Image{ID: fmt.Sprintf("sha256:%064d", len(b)), Tags: []string{"loaded:latest"}, Size: uint64(len(b))}
	f.list = append(f.list, img)
	return []image.Image{img}, nil
}

func (f *fakeImages) Save(_ context.Context, ref string, begin func(id string) (io.Writer, error)) error {
	img, err := f.Get(ref)
	if err != nil {
		return err
	}
	w, err := begin(img.ID)
	if err == nil {
		_, err = io.WriteString(w, strings.Repeat("x", 3<<20+1))
	}
	return errors.Join(err, f.failure("Save"))
}

func (f *fakeImages) Tag(ref, tag string) (image.Image, error) {
	img, err := f.Get(ref)
	img.Tags = append(img.Tags, "full/"+tag)
	return img, err
}

func (f *fakeImages) Get(ref string) (image.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, img := range f.list {
		if img.ID == ref || slices.Contains(img.Tags, ref) || slices.Contains(img.Digests, ref) {
			return img, nil
		}
	}
	return image.Image{}, fault.NotFound.Errorf("no image %q", ref)
}

func (f *fakeImages) List() []image.Image {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list)
}

func (f *fakeImages) Remove(_ context.Context, ref string) error {
	img, err := f.Get(ref)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = slices.DeleteFunc(f.list, func(i image.Image) bool { return i.ID == img.ID })
	return nil
}

// block makes mounts wait until release is called; waiting reports each.
func (f *fakeImages) block() (waiting <-chan struct{}, release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.gate, f.blocked = gate, make(chan struct{}, 16)
	return f.blocked, sync.OnceFunc(func() {
		f.mu.Lock()
		f.gate = nil
		f.mu.Unlock()
		close(gate)
	})
}

// Mount fails like MountReadOnly if the test requests that.
func (f *fakeImages) Mount(_ context.Context, key, _ string, o rootfs.MountOptions) (string, error) {
	method := "Mount"
	if o.ReadOnly {
		method = "MountReadOnly"
	}
	f.mu.Lock()
	gate, blocked := f.gate, f.blocked
	f.mu.Unlock()
	if gate != nil {
		blocked <- struct{}{}
		<-gate
	}
	if err := f.failure(method); err != nil {
		return "", err
	}
	root := filepath.Join(f.dir, key)
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		return "", err
	}
	files := map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nweb:x:1000:1000::/home/web:/bin/sh\n",
		"etc/group":  "root:x:0:\nstaff:x:50:\nlog:x:60:web\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mounts[key] = true
	return root, nil
}

func (f *fakeImages) Unmount(_ context.Context, key string, remove bool) error {
	if err := cmp.Or(f.failure("Unmount"), f.failure("Unmount "+key)); err != nil {
		return err
	}
	f.mu.Lock()
	unmount := f.unmount
	f.mu.Unlock()
	if unmount != nil {
		unmount(key)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if remove {
		delete(f.mounts, key)
		return os.RemoveAll(filepath.Join(f.dir, key))
	}
	return nil
}

func (f *fakeImages) Mounts() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.mounts))
}

// Diff and Apply have only one file, /written.
func (f *fakeImages) Diff(_ context.Context, key string, w io.Writer) ([]string, error) {
	if err := f.failure("Diff"); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(f.dir, key, "written"))
	if os.IsNotExist(err) {
		return []string{"/written"}, nil
	}
	if err == nil {
		_, err = w.Write(data)
	}
	return nil, err
}

func (f *fakeImages) Apply(_ context.Context, key string, r io.Reader, deleted []string) error {
	if err := f.failure("Apply"); err != nil {
		return err
	}
	data, err := io.ReadAll(r)
	if err == nil && len(deleted) == 0 {
		err = os.WriteFile(filepath.Join(f.dir, key, "written"), data, 0o600)
	}
	return err
}

func (f *fakeImages) Usage(string) (uint64, uint64, error) { return 4096, 3, nil }

func (f *fakeImages) FsInfo() image.FsInfo {
	return image.FsInfo{Mountpoint: f.dir, UsedBytes: 1 << 20, Inodes: 12}
}

// fakeNetwork gives every pod two addresses.
type fakeNetwork struct {
	mu      sync.Mutex
	pods    map[string]network.Pod
	adds    int
	fail    map[string]error
	gate    chan struct{} // if not nil, Attach waits for it
	waiting chan struct{} // receives a value when Attach waits
	kept    []string
	ports   bool // a host port belongs to one pod
	room    int  // pods that get an address; 0 = all
}

// block makes Attach wait until release is called; waiting receives a value when one waits.
func (f *fakeNetwork) block() (waiting <-chan struct{}, release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate, w := make(chan struct{}), make(chan struct{}, 16)
	f.gate, f.waiting = gate, w
	return w, sync.OnceFunc(func() {
		f.mu.Lock()
		f.gate = nil
		f.mu.Unlock()
		close(gate)
	})
}

// unblock lets later calls of Attach pass, and not those that wait.
func (f *fakeNetwork) unblock() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gate = nil
}

func (f *fakeNetwork) failing(method string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		f.fail = map[string]error{}
	}
	f.fail[method] = err
}

func (f *fakeNetwork) attached() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.pods))
}

func (f *fakeNetwork) pod(id string) network.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods[id]
}

func (f *fakeNetwork) Attach(ctx context.Context, p network.Pod) (network.Result, error) {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		f.waiting <- struct{}{}
		select {
		case <-gate:
		case <-ctx.Done():
			return network.Result{}, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.adds++
	if err := ocitest.Failure(f.fail["Attach"]); err != nil {
		return network.Result{}, err
	}
	if f.room > 0 && len(f.pods) == f.room {
		return network.Result{}, errors.New("no address is left")
	}
	for id, other := range f.pods {
		if f.ports && other.Ports[0].HostPort == p.Ports[0].HostPort {
			return network.Result{}, fault.Exists.Errorf("host port is taken by sandbox %s", id)
		}
	}
	if f.pods == nil {
		f.pods = map[string]network.Pod{}
	}
	f.pods[p.ID] = p
	return network.Result{IPs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")}}, nil
}

func (f *fakeNetwork) Detach(_ context.Context, p network.Pod) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ocitest.Failure(f.fail["Detach"]); err != nil {
		return err
	}
	delete(f.pods, p.ID)
	return nil
}

func (f *fakeNetwork) Status() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fail["Status"]
}

func (f *fakeNetwork) GC(_ context.Context, keep []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = keep
	for id := range f.pods {
		if !slices.Contains(keep, id) {
			delete(f.pods, id)
		}
	}
	return nil
}

func (f *fakeImages) MakeVolumes(context.Context, string, rootfs.VolumesWanted) ([]rootfs.Volume, error) {
	return nil, f.failure("MakeVolumes")
}
