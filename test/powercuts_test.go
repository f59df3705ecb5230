package test

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The power fails while images are pulled and pods come and go: afterwards, what is listed is
// complete, images that were acknowledged are there, and the node runs pods again. Records of pods and
// removals are not synced: a pod or container may be gone or be back, and can be removed again; one
// that has ended has its exit code, or that of a container that the reboot has ended.
//
// dm-log-writes (Documentation/admin-guide/device-mapper/log-writes) records the writes to the
// disk below crisp's root, in the order in which they were flushed. Each prefix of the record is
// a disk that a power cut may leave. Marks between the writes tell how far the test had come;
// CRISP_POWER_CUTS random prefixes are each written to a fresh disk, on which crispd starts as
// after a boot.
func TestPowerCuts(t *testing.T) {
	cuts, err := strconv.Atoi(os.Getenv("CRISP_POWER_CUTS"))
	if err != nil {
		t.Skip("needs CRISP_POWER_CUTS=50 and a machine of its own: make test-vm")
	}
	disk := newLoggedDisk(t)
	n, config := startNode(t, func(n *node, _ string) error {
		n.root = filepath.Join(disk.dir, "root")
		return n.useRegistry(newRegistry())
	})
	c := &churn{t: t, n: n, disk: disk, files: map[string]map[string][32]byte{}, images: map[string][]string{}}
	c.push(6)
	begin := disk.mark(t)
	c.run()
	end := disk.mark(t)
	if err := n.stopDaemon(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := n.wipe(); err != nil {
		t.Fatal(err)
	}
	disk.close(t)

	log := disk.open(t)
	defer log.Close()
	random := rand.New(rand.NewPCG(1, 2))
	first, last := log.after(begin), log.after(end)
	at := make([]int, cuts)
	for i := range at {
		at[i] = first + random.IntN(last-first)
	}
	slices.Sort(at)
	t.Logf("%d facts, %d writes and flushes between the first mark and the last, %d cuts", len(c.facts), last-first, cuts)
	confirmed := 0
	for _, entry := range at {
		mark := log.replay(t, entry)
		confirmed += c.after(config, disk, entry, mark)
		if t.Failed() {
			t.Fatalf("of %d cuts this was the one at write %d, after mark %d", cuts, entry, mark)
		}
	}
	t.Logf("%d cuts, %d facts looked at, none lost", cuts, confirmed)
}

// A churn is the work before the power fails.
type churn struct {
	t      *testing.T
	n      *node
	disk   *loggedDisk
	files  map[string]map[string][32]byte // of each layer, by diff ID
	images map[string][]string            // name → diff IDs

	mu    sync.Mutex
	facts []*fact
}

// A fact is what an answer of crispd has made certain: an image, or how a container has ended if that
// is still there.
type fact struct {
	kind, id string // "image" NAME, "exited" ID
	code     int32
	acked    int // the mark after the answer
	undone   int // the mark before a call that may make the fact untrue, 0 = none
}

func (c *churn) fact(kind, id string, code int32) *fact {
	f := &fact{kind: kind, id: id, code: code, acked: c.disk.mark(c.t)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.facts = append(c.facts, f)
	return f
}

// undo announces a call that may make facts untrue.
func (c *churn) undo(facts ...*fact) {
	m := c.disk.mark(c.t)
	for _, f := range facts {
		f.undone = m
	}
}

// push puts images into the registry that share one layer, each with one of its own.
func (c *churn) push(images int) {
	base, err := testbinImage(c.n.testbin)
	if err != nil {
		c.t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for i := range images {
		var headers []*tar.Header
		var contents [][]byte
		files := map[string][32]byte{}
		for j := range 20 {
			data := make([]byte, 1+random.IntN(60000))
			for k := range data {
				data[k] = byte(random.Uint32())
			}
			name := fmt.Sprintf("data/%d", j)
			headers = append(headers, &tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg})
			contents, files[name] = append(contents, data), sha256.Sum256(data)
		}
		l, err := layer(headers, contents)
		if err != nil {
			c.t.Fatal(err)
		}
		id, err := l.DiffID()
		if err != nil {
			c.t.Fatal(err)
		}
		c.files[id.String()] = files
		image, err := mutate.AppendLayers(base, l)
		if err != nil {
			c.t.Fatal(err)
		}
		name := fmt.Sprintf("cut%d:latest", i)
		if err := c.n.push(name, image); err != nil {
			c.t.Fatal(err)
		}
		c.images[c.n.registry.host()+"/"+name] = diffIDs(c.t, image)
	}
}

func diffIDs(t *testing.T, image v1.Image) (ids []string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range config.RootFS.DiffIDs {
		ids = append(ids, id.String())
	}
	return ids
}

// run runs a client for each image, which pulls it, runs it and removes it.
func (c *churn) run() {
	var wg sync.WaitGroup
	for i, name := range slices.Sorted(maps.Keys(c.images)) {
		wg.Go(func() {
			for round := range 3 {
				if err := c.client(name, fmt.Sprintf("p%d-%d", i, round), round); err != nil {
					c.t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	wg.Wait()
	if c.t.Failed() {
		c.t.FailNow()
	}
}

func (c *churn) client(image, pod string, round int) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Minute)
	defer cancel()
	rt := c.n.runtime()
	if _, err := c.n.images().PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
		return err
	}
	pulled := c.fact("image", image, 0)
	config, err := c.n.sandboxConfig(pod, []string{"host-network"})
	if err != nil {
		return err
	}
	sb, err := rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return err
	}
	code := int32(10 + round)
	ctr, err := rt.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, SandboxConfig: config, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: image}, Command: []string{"/testbin"}, Args: []string{"exit", fmt.Sprint(code)}, LogPath: "c.log",
	}})
	if err != nil {
		return err
	}
	if _, err := rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: ctr.ContainerId}); err != nil {
		return err
	}
	for {
		s, err := rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: ctr.ContainerId})
		if err != nil {
			return err
		}
		if s.Status.State == cri.ContainerState_CONTAINER_EXITED {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	exited := c.fact("exited", ctr.ContainerId, code)
	if round == 0 {
		return nil // keep it
	}
	c.undo(exited)
	if _, err := rt.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: ctr.ContainerId}); err != nil {
		return err
	}
	if _, err := rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sb.PodSandboxId}); err != nil {
		return err
	}
	if _, err := rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sb.PodSandboxId}); err != nil {
		return err
	}
	if round > 1 {
		return nil
	}
	// The next round pulls the image again.
	c.mu.Lock()
	var known []*fact
	for _, f := range c.facts {
		if f.kind == "image" && f.id == image {
			known = append(known, f)
		}
	}
	c.mu.Unlock()
	c.undo(append(known, pulled)...)
	if _, err := c.n.images().RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
		return err
	}
	return nil
}

// after starts crispd on what the power cut has left, and checks it. It returns the number
// of facts that held.
func (c *churn) after(config string, disk *loggedDisk, entry, mark int) (confirmed int) {
	t, n := c.t, c.n
	t.Helper()
	defer disk.mountCopy(t)()
	newBoot(t, n)
	for _, dir := range []string{n.state, filepath.Join(n.dir, "logs")} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.start(config, nil); err != nil {
		t.Errorf("crispd does not start: %v", err)
		return 0
	}
	defer func() {
		if err := errors.Join(n.stopDaemon(syscall.SIGTERM), n.wipe()); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	there := map[string]bool{}
	images, err := n.images().ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		t.Error(err)
		return 0
	}
	for _, i := range images.Images {
		for _, name := range i.RepoTags {
			there["image "+name] = true
			c.whole(name)
		}
	}
	pods, err := n.runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Error(err)
		return 0
	}
	containers, err := n.runtime().ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		t.Error(err)
		return 0
	}
	for _, ctr := range containers.Containers {
		there["container "+ctr.Id] = true
	}
	for _, f := range c.facts {
		if f.acked > mark || f.undone != 0 && f.undone <= mark {
			continue
		}
		confirmed++
		switch {
		case f.kind == "exited" && there["container "+f.id]:
			s, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: f.id})
			if err != nil || s.Status.State != cri.ContainerState_CONTAINER_EXITED || s.Status.ExitCode != f.code && s.Status.Reason != "Reboot" {
				t.Errorf("container %s had exited with %d: %v, %v", f.id, f.code, s.GetStatus(), err)
			}
		case f.kind == "image" && !there["image "+f.id]:
			t.Errorf("image %s was acknowledged at mark %d, and is gone", f.id, f.acked)
		}
	}
	c.runsAgain(ctx, fmt.Sprint("after-", entry))
	for _, p := range pods.Items {
		if _, err := n.runtime().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.Id}); err != nil {
			t.Errorf("remove a pod from before the power cut: %v", err)
		}
	}
	for _, i := range images.Images {
		if _, err := n.images().RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: i.Id}}); err != nil {
			t.Errorf("remove an image from before the power cut: %v", err)
		}
	}
	if containers, err = n.runtime().ListContainers(ctx, &cri.ListContainersRequest{}); err != nil || len(containers.Containers) > 0 {
		t.Errorf("containers of removed pods are left: %v, %v", containers, err)
	}
	return confirmed
}

// whole checks each file of a listed image.
func (c *churn) whole(name string) {
	for _, id := range c.images[name] {
		for file, want := range c.files[id] {
			found, _ := filepath.Glob(filepath.Join(c.n.root, "images/layers", "*"+strings.TrimPrefix(id, "sha256:"), "fs", file))
			if len(found) != 1 {
				c.t.Errorf("image %s is listed, and its layer %s lacks the file %s", name, id, file)
				return
			}
			data, err := os.ReadFile(found[0])
			if err != nil || sha256.Sum256(data) != want {
				c.t.Errorf("image %s is listed, and the content of %s (%d bytes) is wrong (%v)", name, found[0], len(data), err)
			}
		}
	}
}

// runsAgain pulls an image and runs a pod.
func (c *churn) runsAgain(ctx context.Context, pod string) {
	t, n := c.t, c.n
	t.Helper()
	image := slices.Sorted(maps.Keys(c.images))[0]
	if _, err := n.images().PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
		t.Errorf("pull: %v", err)
		return
	}
	c.whole(image)
	config, err := n.sandboxConfig(pod, nil)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := n.runtime().RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Errorf("run a pod: %v", err)
		return
	}
	ctr, err := n.runtime().CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, SandboxConfig: config, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: image}, Command: []string{"/testbin"}, Args: []string{"sleep", "for-ever"},
	}})
	if err == nil {
		_, err = n.runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: ctr.ContainerId})
	}
	if err == nil {
		_, err = n.runtime().RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sb.PodSandboxId})
	}
	if err != nil {
		t.Errorf("run a container: %v", err)
	}
}

// newBoot makes crispd take its next start for one after a reboot.
func newBoot(t *testing.T, n *node) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(n.state, "boot-id")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(n.root, "boot.json")
	var boot map[string]any
	if err := json.Unmarshal(read(t, path), &boot); err != nil || boot["bootID"] == nil {
		t.Fatalf("%v: %v", boot, err)
	}
	boot["bootID"] = "11111111-2222-4333-8444-555555555555"
	data, err := json.Marshal(boot)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A loggedDisk is an ext4 file system whose writes are recorded.
type loggedDisk struct {
	dir         string // where it is mounted, and later copies of it
	data, log   string // files
	name        string // of the device mapper's device
	devices     []string
	copies      string // of the disk, the prefix so far
	mu          sync.Mutex
	marks       int
	diskSectors int64
}

const (
	loggedSize = 256 << 20
	logSize    = 3 << 30 // with holes
)

func sh(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func newLoggedDisk(t *testing.T) *loggedDisk {
	t.Helper()
	dir := t.TempDir()
	d := &loggedDisk{
		dir: filepath.Join(dir, "mnt"), data: filepath.Join(dir, "data"), log: filepath.Join(dir, "log"), copies: filepath.Join(dir, "prefix"),
		name: fmt.Sprintf("crisp-test-%d", os.Getpid()), diskSectors: loggedSize / 512,
	}
	for file, size := range map[string]int64{d.data: loggedSize, d.log: logSize, d.copies: loggedSize} {
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	sh(t, "modprobe", "dm-log-writes")
	for _, file := range []string{d.data, d.log} {
		dev := sh(t, "losetup", "--find", "--show", file)
		d.devices = append(d.devices, dev)
	}
	t.Cleanup(func() { d.close(t) })
	sh(t, "dmsetup", "create", d.name, "--table", fmt.Sprintf("0 %d log-writes %s %s", d.diskSectors, d.devices[0], d.devices[1]))
	dev := "/dev/mapper/" + d.name
	sh(t, "mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", dev)
	sh(t, "mount", dev, d.dir)
	return d
}

// mark puts the next number into the log, and returns it.
func (d *loggedDisk) mark(t *testing.T) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.marks++
	if out, err := exec.Command("dmsetup", "message", d.name, "0", "mark", strconv.Itoa(d.marks)).CombinedOutput(); err != nil {
		t.Errorf("dmsetup message: %v: %s", err, out)
	}
	return d.marks
}

// close unmounts the disk, which completes its log.
func (d *loggedDisk) close(t *testing.T) {
	t.Helper()
	if d.devices == nil {
		return
	}
	sh(t, "umount", d.dir)
	sh(t, "dmsetup", "remove", d.name)
	for _, dev := range d.devices {
		sh(t, "losetup", "--detach", dev)
	}
	d.devices = nil
}

// mountCopy mounts a copy of the prefix that replay has written, and returns a function
// that unmounts it.
func (d *loggedDisk) mountCopy(t *testing.T) func() {
	t.Helper()
	file := d.copies + ".mounted"
	sh(t, "cp", "--sparse=always", d.copies, file)
	sh(t, "mount", "-o", "loop", file, d.dir)
	return func() { sh(t, "umount", d.dir) }
}

// A writeLog is a record of dm-log-writes.
type writeLog struct {
	log     *os.File
	to      *os.File // the prefix
	entries []logEntry
	done    int // entries that the prefix has
}

// A logEntry is a struct log_write_entry of drivers/md/dm-log-writes.c.
type logEntry struct {
	sector, sectors, flags uint64
	data                   int64 // offset in the log
	mark                   int
}

const (
	logMagic    = 0x6a736677736872
	logDiscard  = 1 << 2
	logMark     = 1 << 3
	logEntryLen = 32
)

func (d *loggedDisk) open(t *testing.T) *writeLog {
	t.Helper()
	log, err := os.Open(d.log)
	if err != nil {
		t.Fatal(err)
	}
	to, err := os.OpenFile(d.copies, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := &writeLog{log: log, to: to}
	header := make([]byte, 28)
	if _, err := log.ReadAt(header, 0); err != nil {
		t.Fatal(err)
	}
	number := binary.LittleEndian.Uint64
	size := int64(binary.LittleEndian.Uint32(header[24:]))
	if number(header) != logMagic || number(header[8:]) != 1 || size != 512 {
		t.Fatalf("no log of dm-log-writes: %x", header)
	}
	at := size
	for range number(header[16:]) {
		block := make([]byte, size)
		if _, err := log.ReadAt(block, at); err != nil {
			t.Fatal(err)
		}
		at += size
		e := logEntry{sector: number(block), sectors: number(block[8:]), flags: number(block[16:]), data: at}
		if e.flags&logMark != 0 {
			text := block[logEntryLen : logEntryLen+number(block[24:])]
			e.mark, _ = strconv.Atoi(strings.TrimRight(string(text), "\x00")) // the driver's own marks are not numbers
		}
		if e.flags&logDiscard == 0 {
			at += int64(e.sectors) * size
		}
		w.entries = append(w.entries, e)
	}
	return w
}

func (w *writeLog) Close() error { return errors.Join(w.log.Close(), w.to.Close()) }

// after returns the index of the entry after a mark.
func (w *writeLog) after(mark int) int {
	return 1 + slices.IndexFunc(w.entries, func(e logEntry) bool { return e.mark == mark })
}

// replay writes the entries before entry to the prefix, and returns the last mark among
// them.
func (w *writeLog) replay(t *testing.T, entry int) (mark int) {
	t.Helper()
	for ; w.done < entry; w.done++ {
		e := w.entries[w.done]
		var err error
		switch {
		case e.flags&logMark != 0 || e.sectors == 0:
		case e.flags&logDiscard != 0:
			err = unix.Fallocate(int(w.to.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(e.sector)*512, int64(e.sectors)*512)
		default:
			_, err = io.Copy(io.NewOffsetWriter(w.to, int64(e.sector)*512), io.NewSectionReader(w.log, e.data, int64(e.sectors)*512))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range w.entries[:entry] {
		mark = max(mark, e.mark)
	}
	return mark
}
