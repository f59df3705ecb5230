package image_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
)

// A running pull shows its source, the pods that wait for it, and the progress of each
// layer; layers that are present do not count.
func TestPullTellsHowFarItIs(t *testing.T) {
	mirror, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Mirrored(origin, mirror)
	first, img := imagetest.Build(t, "gzip", "base"), imagetest.Build(t, "gzip", "base", "top")
	mirror.Push("app", "v0", first)
	mirror.Push("app", "v1", img)
	p.Pull(origin.Host + "/app:v0")

	asked, goOn := make(chan struct{}), make(chan struct{})
	mirror.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, digest.FromBytes(img.Blobs[1]).String()) {
			close(asked)
			imagetest.Await(r, goOn)
		}
		return false
	})
	pulled := make(chan error, 1)
	go func() {
		_, err := p.Store.Pull(t.Context(), origin.Host+"/app:v1", registry.Caller{Pod: "default/web"})
		pulled <- err
	}()
	<-asked
	list := p.Store.Pulls()
	if len(list) != 1 || list[0].Image != origin.Host+"/app:v1" || !strings.HasPrefix(list[0].From, mirror.Host) || !list[0].Mirror ||
		len(list[0].For) != 1 || list[0].For[0] != "default/web" || list[0].Total != int64(len(img.Blobs[1])) || list[0].Stage != "layers" {
		t.Fatalf("pulls under way: %+v", list)
	}
	if l := list[0].Layers; len(l) != 2 || l[0].State != pulls.Here || l[1].Size != list[0].Total {
		t.Errorf("layers of the pull: %+v", l)
	}
	close(goOn)
	if err := <-pulled; err != nil {
		t.Fatal(err)
	}
	recent := p.Store.RecentPulls()
	if len(p.Store.Pulls()) != 0 || len(recent) != 2 || recent[0].Bytes != recent[0].Total || recent[0].Err != "" {
		t.Errorf("after the pull: %+v and %+v", p.Store.Pulls(), recent)
	}
}
