package page

import (
	"cmp"
	"net/http"
	"slices"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/crisp-cri/crisp/internal/pulls"
)

// imagePage is the data of the page of images and disks.
type imagePage struct {
	Disks  []diskRow
	Uses   []useRow
	Images []imageRow
}

// A diskRow is a file system.
type diskRow struct {
	Name, Used, Free, Size string
	Percent                int // used of what is used and free for containers: as df(1) has it
}

// A useRow is the disk space that one kind of data uses.
type useRow struct {
	Name, Bytes string
	Count       int
}

type imageRow struct {
	Names      []string
	ID         string
	Bytes      uint64
	Size       string
	Containers int // number of containers that use it
	Pinned     bool
}

func (s *Server) images(w http.ResponseWriter, r *http.Request) error {
	runtime, service, err := s.o.Runtime.Runtime()
	if err != nil {
		return err
	}
	list, err := service.ListImages(r.Context(), nil)
	if err != nil {
		return err
	}
	boxes, err := runtime.ListContainers(r.Context(), nil)
	if err != nil {
		return err
	}
	var summary stats.Summary
	if err := s.ask(r.Context(), "/stats/summary", &summary); err != nil {
		return err
	}
	body := imagePage{Images: imageRows(list, boxes), Disks: disks(summary.Node), Uses: uses(list, &summary)}
	s.show(w, r, http.StatusOK, "images", view{Title: "Images and disk", Body: body})
	return nil
}

// imageRows returns a row for each image, the largest first.
func imageRows(list []*cri.Image, boxes []*cri.Container) []imageRow {
	used := map[string]int{}
	for _, b := range boxes {
		used[cmp.Or(b.ImageId, b.GetImage().GetImage())]++
	}
	var rows []imageRow
	for _, i := range list {
		row := imageRow{Names: i.RepoTags, ID: i.Id, Bytes: i.Size, Size: pulls.Size(int64(i.Size)), Containers: used[i.Id], Pinned: i.Pinned}
		if len(row.Names) == 0 {
			row.Names = i.RepoDigests
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b imageRow) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.ID, b.ID)) })
	return rows
}

func disks(n stats.NodeStats) []diskRow {
	var rows []diskRow
	add := func(name string, fs *stats.FsStats) {
		if fs == nil || ptr.Deref(fs.CapacityBytes, 0) == 0 {
			return
		}
		capacity, free, used := *fs.CapacityBytes, ptr.Deref(fs.AvailableBytes, 0), ptr.Deref(fs.UsedBytes, 0)
		if name != "Root" {
			used = capacity - min(free, capacity) // UsedBytes has what is theirs alone
		}
		row := diskRow{name, pulls.Size(int64(used)), pulls.Size(int64(free)), pulls.Size(int64(capacity)), int(100 * used / max(used+free, 1))}
		if n := len(rows); n > 0 && rows[n-1].Size == row.Size && rows[n-1].Free == row.Free { // the same file system
			rows[n-1].Name += ", " + name
			return
		}
		rows = append(rows, row)
	}
	add("Root", n.Fs)
	if n.Runtime != nil {
		add("Images", n.Runtime.ImageFs)
		add("Containers", n.Runtime.ContainerFs)
	}
	return rows
}

// uses sums up the disk space that images, and the containers and volumes of pods, use.
func uses(list []*cri.Image, summary *stats.Summary) []useRow {
	var images, written, logs, volumes struct{ count, bytes uint64 }
	for _, i := range list {
		images.count, images.bytes = images.count+1, images.bytes+i.Size
	}
	for _, p := range summary.Pods {
		for _, c := range p.Containers {
			if c.Rootfs != nil {
				written.count, written.bytes = written.count+1, written.bytes+ptr.Deref(c.Rootfs.UsedBytes, 0)
			}
			if c.Logs != nil {
				logs.count, logs.bytes = logs.count+1, logs.bytes+ptr.Deref(c.Logs.UsedBytes, 0)
			}
		}
		for _, v := range p.VolumeStats {
			volumes.count, volumes.bytes = volumes.count+1, volumes.bytes+ptr.Deref(v.UsedBytes, 0)
		}
	}
	var rows []useRow
	for _, u := range []struct {
		name string
		of   struct{ count, bytes uint64 }
	}{{"Images", images}, {"Written by containers", written}, {"Logs", logs}, {"Volumes", volumes}} {
		rows = append(rows, useRow{Name: u.name, Count: int(u.of.count), Bytes: pulls.Size(int64(u.of.bytes))})
	}
	return rows
}
