package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/server/loaderapi/loaderclient"
	"github.com/crisp-cri/crisp/server/spec"
)

// CRI: "All those fields are combined with 'AND'."
func TestFilters(t *testing.T) {
	n := newNode(t)
	a, b := n.run(t, pod("a")), n.run(t, pod("b"))
	ca, cb := n.begin(t, a, forever("x")), n.create(t, b, forever("y"))
	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: b}); err != nil {
		t.Fatal(err)
	}
	ready := &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}
	for name, c := range map[string]struct {
		f    *cri.PodSandboxFilter
		want []string
	}{
		"none":         {nil, []string{a, b}},
		"prefix":       {&cri.PodSandboxFilter{Id: a[:10]}, []string{a}},
		"unknown id":   {&cri.PodSandboxFilter{Id: "feed"}, nil},
		"state":        {&cri.PodSandboxFilter{State: ready}, []string{a}},
		"label":        {&cri.PodSandboxFilter{LabelSelector: map[string]string{"app": "b", "tier": "test"}}, []string{b}},
		"other value":  {&cri.PodSandboxFilter{LabelSelector: map[string]string{"app": "c"}}, nil},
		"id and state": {&cri.PodSandboxFilter{Id: b, State: ready}, nil},
	} {
		resp, err := n.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{Filter: c.f})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, sb := range resp.Items {
			got = append(got, sb.Id)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("sandboxes, %s: %v, want %v", name, got, c.want)
		}
	}
	running := &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}
	for name, c := range map[string]struct {
		f    *cri.ContainerFilter
		want []string
	}{
		"none":            {nil, []string{ca, cb}},
		"prefix":          {&cri.ContainerFilter{Id: cb[:10]}, []string{cb}},
		"sandbox":         {&cri.ContainerFilter{PodSandboxId: a[:12]}, []string{ca}},
		"state":           {&cri.ContainerFilter{State: running}, []string{ca}},
		"label":           {&cri.ContainerFilter{LabelSelector: map[string]string{"name": "y"}}, []string{cb}},
		"sandbox + label": {&cri.ContainerFilter{PodSandboxId: a, LabelSelector: map[string]string{"name": "y"}}, nil},
	} {
		resp, err := n.ListContainers(t.Context(), &cri.ListContainersRequest{Filter: c.f})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range resp.Containers {
			got = append(got, c.Id)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("containers, %s: %v, want %v", name, got, c.want)
		}
	}
}

// Every call accepts a prefix of an ID; a prefix of two objects' IDs is an error.
func TestPrefixes(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("a"))
	var ids []string
	for i := range 17 { // by the pigeonhole principle, two begin with the same hexadecimal digit
		ids = append(ids, n.create(t, sb, forever(fmt.Sprint("c", i))))
	}
	if got := n.status(t, ids[0][:20]); got.Id != ids[0] {
		t.Errorf("prefix found %s, want %s", got.Id, ids[0])
	}
	first := map[byte]int{}
	for _, id := range ids {
		first[id[0]]++
		if first[id[0]] == 2 {
			_, err := n.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id[:1]})
			wantCode(t, "ambiguous prefix", err, "InvalidArgument")
			return
		}
	}
}

// collect reads a stream to its end.
func collect[T, I any](t *testing.T, stream grpc.ServerStreamingClient[T], err error, items func(*T) []I) (all []I, messages int) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, messages
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(items(m)) == 0 {
			t.Error("a message without items")
		}
		all, messages = append(all, items(m)...), messages+1
	}
}

// A streamed list equals the list. An empty one sends no message.
func TestStreamedLists(t *testing.T) {
	n := newNode(t)
	none, err := n.StreamPodSandboxes(t.Context(), &cri.StreamPodSandboxesRequest{})
	if all, messages := collect(t, none, err, (*cri.StreamPodSandboxesResponse).GetPodSandboxes); len(all) != 0 || messages != 0 {
		t.Errorf("empty list: %d items in %d messages", len(all), messages)
	}
	sb := n.run(t, pod("a"))
	n.begin(t, sb, forever("x"))
	sandboxes, err := n.StreamPodSandboxes(t.Context(), &cri.StreamPodSandboxesRequest{})
	if all, _ := collect(t, sandboxes, err, (*cri.StreamPodSandboxesResponse).GetPodSandboxes); len(all) != 1 || all[0].Id != sb {
		t.Errorf("sandboxes: %v", all)
	}
	containers, err := n.StreamContainers(t.Context(), &cri.StreamContainersRequest{})
	if all, _ := collect(t, containers, err, (*cri.StreamContainersResponse).GetContainers); len(all) != 1 {
		t.Errorf("containers: %v", all)
	}
	stats, err := n.StreamContainerStats(t.Context(), &cri.StreamContainerStatsRequest{})
	if all, _ := collect(t, stats, err, (*cri.StreamContainerStatsResponse).GetContainerStats); len(all) != 1 {
		t.Errorf("container stats: %v", all)
	}
	podStats, err := n.StreamPodSandboxStats(t.Context(), &cri.StreamPodSandboxStatsRequest{})
	if all, _ := collect(t, podStats, err, (*cri.StreamPodSandboxStatsResponse).GetPodSandboxStats); len(all) != 1 {
		t.Errorf("sandbox stats: %v", all)
	}
	metrics, err := n.StreamPodSandboxMetrics(t.Context(), &cri.StreamPodSandboxMetricsRequest{})
	if all, _ := collect(t, metrics, err, (*cri.StreamPodSandboxMetricsResponse).GetPodSandboxMetrics); len(all) != 1 {
		t.Errorf("metrics: %v", all)
	}
	images, err := n.images.StreamImages(t.Context(), &cri.StreamImagesRequest{})
	if all, _ := collect(t, images, err, (*cri.StreamImagesResponse).GetImages); len(all) != 1 || all[0].Id != testID {
		t.Errorf("images: %v", all)
	}
}

// Each item is sent once, in order, in messages within the size limit.
func TestInBatches(t *testing.T) {
	item := func(size int) *cri.Container { return &cri.Container{Id: strings.Repeat("x", size)} }
	for name, c := range map[string]struct {
		items []*cri.Container
		want  []int // items in each message
	}{
		"none":          {nil, nil},
		"one":           {slices.Repeat([]*cri.Container{item(1)}, 1), []int{1}},
		"many small":    {slices.Repeat([]*cri.Container{item(1)}, 2*batchItems+1), []int{batchItems, batchItems, 1}},
		"large":         {slices.Repeat([]*cri.Container{item(batchBytes/2 - 100)}, 5), []int{2, 2, 1}},
		"one too large": {[]*cri.Container{item(1), item(2 * batchBytes), item(1)}, []int{1, 1, 1}},
	} {
		var got []int
		var sent []*cri.Container
		if err := inBatches(c.items, func(b []*cri.Container) error {
			got, sent = append(got, len(b)), append(sent, b...)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, c.want) || !slices.Equal(sent, c.items) {
			t.Errorf("%s: messages of %v, want %v", name, got, c.want)
		}
	}
	gone := errors.New("client has gone")
	if err := inBatches([]*cri.Container{item(1)}, func([]*cri.Container) error { return gone }); err != gone {
		t.Errorf("error of the stream became %v", err)
	}
}

// A subscriber gets one event for each step of a pod's life, with statuses that are not older than
// the event.
func TestEvents(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := n.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for !n.server.events.hub.HasSubscribers() { // the subscription has no answer to wait for
	}
	next := func(id string, typ cri.ContainerEventType) *cri.ContainerEventResponse {
		t.Helper()
		ev, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.ContainerId != id || ev.ContainerEventType != typ || ev.CreatedAt == 0 || ev.PodSandboxStatus == nil {
			t.Errorf("event %v, want %v of %s", ev, typ, id)
		}
		return ev
	}
	const created, started = cri.ContainerEventType_CONTAINER_CREATED_EVENT, cri.ContainerEventType_CONTAINER_STARTED_EVENT
	const stopped, deleted = cri.ContainerEventType_CONTAINER_STOPPED_EVENT, cri.ContainerEventType_CONTAINER_DELETED_EVENT

	sb := n.run(t, pod("a"))
	next(sb, created)
	if ev := next(sb, started); ev.PodSandboxStatus.State != cri.PodSandboxState_SANDBOX_READY || ev.PodSandboxStatus.Network.Ip == "" {
		t.Errorf("sandbox started: %v", ev.PodSandboxStatus)
	}
	id := n.create(t, sb, container("x", "exit", "3"))
	if ev := next(id, created); len(ev.ContainersStatuses) != 1 {
		t.Errorf("container created: %v", ev.ContainersStatuses)
	}
	if _, err := n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	next(id, started)
	if ev := next(id, stopped); len(ev.ContainersStatuses) != 1 || ev.ContainersStatuses[0].ExitCode != 3 ||
		ev.ContainersStatuses[0].State != cri.ContainerState_CONTAINER_EXITED {
		t.Errorf("container stopped: %v", ev.ContainersStatuses)
	}
	if _, err := n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	if ev := next(sb, stopped); ev.PodSandboxStatus.State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("sandbox stopped: %v", ev.PodSandboxStatus)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	next(id, deleted)
	next(sb, deleted)
}

// ImageStatus does not modify the image, which all calls share, not even beyond the end of its list
// of tags.
func TestImageStatusLeavesTheImageAlone(t *testing.T) {
	n := newNode(t)
	room := []string{testImage, "behind"}
	n.store.list[0].Tags = room[:1]
	if _, err := n.images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: testID}, Verbose: true}); err != nil {
		t.Fatal(err)
	}
	if room[1] != "behind" {
		t.Errorf("%q was written into the image", room[1])
	}
}

func TestImages(t *testing.T) {
	n := newNode(t)
	pulled, err := n.images.PullImage(t.Context(), &cri.PullImageRequest{
		Image: &cri.ImageSpec{Image: testImage}, Auth: &cri.AuthConfig{Username: "u", Password: "p"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if auth := n.store.pulled[0].Auth; auth == nil || auth.Username != "u" || auth.Password != "p" {
		t.Errorf("credentials were %+v", auth)
	}
	// CRI 0.36: one identifier everywhere.
	for _, ref := range []string{testImage, testID, testDigest, pulled.ImageRef} {
		resp, err := n.images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}, Verbose: true})
		if err != nil || resp.Image.GetId() != testID || resp.Image.Size == 0 || resp.Info["info"] == "" {
			t.Errorf("%s: %v, %v", ref, resp, err)
		}
	}
	filtered, err := n.images.ListImages(t.Context(), &cri.ListImagesRequest{Filter: &cri.ImageFilter{Image: &cri.ImageSpec{Image: "nowhere:1"}}})
	if err != nil || len(filtered.Images) != 0 {
		t.Errorf("filter by an unknown name: %v, %v", filtered, err)
	}
	names, err := loaderclient.Load(t.Context(), n.conn, strings.NewReader(strings.Repeat("x", 3<<20+1)))
	if err != nil || !slices.Equal(names, []string{"loaded:latest"}) {
		t.Errorf("load: %v, %v", names, err)
	}
	list := n.store.List()
	if size := list[len(list)-1].Size; size != 3<<20+1 {
		t.Errorf("the archive arrived as %d bytes", size)
	}
	_, err = loaderclient.Load(t.Context(), n.conn, strings.NewReader(""))
	wantCode(t, "archive without images", err, "InvalidArgument")
	if tag, err := loaderclient.Tag(t.Context(), n.conn, testImage, "mine:1"); err != nil || tag != "full/mine:1" {
		t.Errorf("tag: %q, %v", tag, err)
	}
	for _, names := range [][2]string{{"nowhere:1", "mine:1"}, {"", "mine:1"}, {testImage, ""}} {
		if tag, err := loaderclient.Tag(t.Context(), n.conn, names[0], names[1]); err == nil {
			t.Errorf("tag %q: %q", names, tag)
		}
	}
	saveImages(t, n)
	broken := errors.New("disk is broken")
	if _, err := loaderclient.Load(t.Context(), n.conn, io.MultiReader(strings.NewReader("x"), failing{broken})); !errors.Is(err, broken) {
		t.Errorf("archive that cannot be read: %v", err)
	}
	if _, err := n.images.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: testID}}); err != nil {
		t.Fatal(err)
	}
	fs, err := n.images.ImageFsInfo(t.Context(), &cri.ImageFsInfoRequest{})
	if err != nil || fs.ImageFilesystems[0].Timestamp == 0 || fs.ImageFilesystems[0].FsId.Mountpoint != fs.ContainerFilesystems[0].FsId.Mountpoint {
		t.Errorf("file systems: %v, %v", fs, err)
	}
}

// The archive of an image comes complete or with an error, and after its ID.
func saveImages(t *testing.T, n *node) {
	t.Helper()
	var archive bytes.Buffer
	if id, err := loaderclient.Save(t.Context(), n.conn, testImage, &archive); err != nil || id != testID || archive.Len() != 3<<20+1 {
		t.Errorf("save: ID %q and %d bytes, %v", id, archive.Len(), err)
	}
	_, err := loaderclient.Save(t.Context(), n.conn, "nowhere:1", &archive)
	wantCode(t, "save of no image", err, "NotFound")
	_, err = loaderclient.Save(t.Context(), n.conn, "", &archive)
	wantCode(t, "save of no name", err, "InvalidArgument")
	n.store.mu.Lock()
	n.store.fail["Save"] = fault.Unavailable.Errorf("disk is broken")
	n.store.mu.Unlock()
	_, err = loaderclient.Save(t.Context(), n.conn, testImage, &archive)
	wantCode(t, "save that fails behind the archive", err, "Unavailable")
	full := errors.New("disk is full")
	if _, err := loaderclient.Save(t.Context(), n.conn, testImage, failing{full}); !errors.Is(err, full) {
		t.Errorf("archive that cannot be written: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// The image's user is a number or a name, without its group.
func TestImageUser(t *testing.T) {
	for user, want := range map[string]*cri.Image{
		"":         {},
		"1000":     {Uid: &cri.Int64Value{Value: 1000}},
		"0:0":      {Uid: &cri.Int64Value{}},
		"web":      {Username: "web"},
		"web:1000": {Username: "web"},
	} {
		var img image.Image
		img.Config.Config.User = user
		got := criImage(img)
		if got.Username != want.Username || (got.Uid == nil) != (want.Uid == nil) || got.Uid.GetValue() != want.Uid.GetValue() {
			t.Errorf("user %q is %v %q, want %v %q", user, got.Uid, got.Username, want.Uid, want.Username)
		}
	}
}

// The kubelet checks runAsNonRoot by the number in ImageStatus. The container must run as that
// number, whatever the image's files say.
func TestImageRunsAsTheNumberReported(t *testing.T) {
	for _, user := range []string{"1000", "+1000", "01000", "1000:1000", "-1", "4294967295", "4294967296", "99999999999999999999", " 1000", "1e3", "0x10", "１"} {
		name, _, _ := strings.Cut(user, ":")
		var img image.Image
		img.Config.Config.User = user
		shown := criImage(img)
		passwd := strings.NewReader(name + ":x:0:0::/:\n1000:x:0:0::/:\n")
		got, err := spec.ResolveUser(nil, user, passwd, nil)
		switch {
		case shown.Uid == nil && shown.Username != name:
			t.Errorf("user %q: shown as %q", user, shown.Username)
		case shown.Uid != nil && err == nil && int64(got.UID) != shown.Uid.Value:
			t.Errorf("user %q: shown as %d, runs as %d", user, shown.Uid.Value, got.UID)
		case shown.Uid.GetValue() == 1000 && err != nil:
			t.Errorf("user %q: %v", user, err)
		}
	}
}

func TestRuntimeInfo(t *testing.T) {
	n := newNode(t)
	v, err := n.Version(t.Context(), &cri.VersionRequest{})
	if err != nil || v.Version == "" || v.RuntimeName != "crisp" || v.RuntimeVersion != "1.2.3" || v.RuntimeApiVersion != "v1" {
		t.Errorf("version: %v, %v", v, err)
	}
	status := func() *cri.StatusResponse {
		t.Helper()
		st, err := n.Status(t.Context(), &cri.StatusRequest{Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	st := status()
	if len(st.Status.Conditions) != 2 || !st.Status.Conditions[0].Status || !st.Status.Conditions[1].Status || !strings.Contains(st.Info["config"], n.machine.State) {
		t.Errorf("status: %v", st)
	}
	n.net.failing("Status", errors.New("no configuration in /etc/cni/net.d"))
	if c := status().Status.Conditions[1]; c.Status || c.Type != "NetworkReady" || c.Reason != "NetworkPluginNotReady" || !strings.Contains(c.Message, "no configuration") {
		t.Errorf("without a network: %v", c)
	}
	c, err := n.RuntimeConfig(t.Context(), &cri.RuntimeConfigRequest{})
	if err != nil || c.Linux.CgroupDriver != cri.CgroupDriver_CGROUPFS {
		t.Errorf("config: %v, %v", c, err)
	}
	if _, err := n.UpdateRuntimeConfig(t.Context(), &cri.UpdateRuntimeConfigRequest{}); err != nil {
		t.Error(err)
	}
	d, err := n.ListMetricDescriptors(t.Context(), &cri.ListMetricDescriptorsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range d.Descriptors {
		if m.Help == "" || seen[m.Name] {
			t.Errorf("metric %s has no help, or is there twice", m.Name)
		}
		seen[m.Name] = true
	}
}
