package progress_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/image/progress"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"
)

// store has these layers.
type store map[digest.Digest]bool

func (s store) Has(id digest.Digest) bool { return s[id] }

// slow serves blobs of 1000 bytes, 100 with each read, at a read a second; it fails after failAt
// bytes, unless that is 0.
type slow struct{ failAt int }

func (s *slow) Open(context.Context, blob.Blob) (io.ReadCloser, error) {
	data, end := make([]byte, 1000), io.Reader(bytes.NewReader(nil))
	if s.failAt > 0 {
		data, end = data[:s.failAt], iotest.ErrReader(errors.New("broken"))
	}
	return io.NopCloser(io.MultiReader(delayed{bytes.NewReader(data)}, end)), nil
}
func (*slow) Has(context.Context, blob.Blob) error                   { return nil }
func (*slow) Repository() string                                     { return "reg.test/app" }
func (*slow) Reject(_ context.Context, _ blob.Blob, why error) error { return why }
func (*slow) Place() (string, bool)                                  { return "mirror.test", true }

type delayed struct{ r io.Reader }

func (d delayed) Read(p []byte) (int, error) {
	n, err := d.r.Read(p[:min(len(p), 100)])
	if n > 0 {
		time.Sleep(time.Second)
	}
	return n, err
}

var blobs = []blob.Blob{
	{BlobInfo: types.BlobInfo{Digest: digest.FromString("a"), Size: 1000}},
	{BlobInfo: types.BlobInfo{Digest: digest.FromString("b"), Size: 1000}},
	{BlobInfo: types.BlobInfo{Digest: digest.FromString("c"), Size: 5000}},
	{BlobInfo: types.BlobInfo{Digest: digest.FromString("a"), Size: 1000}}, // again: it is fetched once
}

var ids = []digest.Digest{"id:a", "id:b", "id:c", "id:a"}

// read reads a blob to its end, as the unpacking of a layer does.
func read(from blob.Origin, b blob.Blob) error {
	body, err := from.Open(context.Background(), b)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}

// A pull reports its bytes, rate and layers; layers that are present do not count, and two
// pulls of one layer both report its progress.
func TestPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tr progress.Tracker
		here := store{"id:c": true}
		p, other := tr.New("reg.test/app:1"), tr.New("reg.test/app:2")
		p.Begin()
		other.Begin()
		p.Join("default/web")
		p.Join("")
		p.SetStage("layers")
		if s := tr.List()[0].String(); s != "asking the registry" {
			t.Errorf("at first: %q", s)
		}
		p.Expect(blobs, ids, here)
		other.Expect(blobs[:1], ids[:1], here)
		from := p.Origin(&slow{})
		go read(from, blobs[0])
		time.Sleep(4500 * time.Millisecond)
		want := []pulls.Pull{{
			Image: "reg.test/app:1", From: "mirror.test", Mirror: true, Stage: "layers", Waiters: 2, For: []string{"default/web"},
			Bytes: 400, Total: 2000, AllKnown: true,
			Layers: []pulls.Layer{
				{Digest: blobs[0].Digest.String(), Size: 1000, Bytes: 400, State: pulls.Downloading},
				{Digest: blobs[1].Digest.String(), Size: 1000, State: pulls.Waiting},
				{Digest: blobs[2].Digest.String(), Size: 5000, State: pulls.Here},
			},
		}, {
			Image: "reg.test/app:2", Bytes: 400, Total: 1000, AllKnown: true,
			Layers: []pulls.Layer{{Digest: blobs[0].Digest.String(), Size: 1000, Bytes: 400, State: pulls.Downloading}},
		}}
		unmeasured := cmpopts.IgnoreFields(pulls.Pull{}, "Begun", "Rate")
		if d := cmp.Diff(want, tr.List(), unmeasured, cmpopts.EquateEmpty()); d != "" {
			t.Error(d)
		}
		if rate := tr.List()[0].Rate; rate < 80 || rate > 110 {
			t.Errorf("the rate is %v, want about 100", rate)
		}
		time.Sleep(time.Minute)
		if got := tr.List()[0]; got.Rate != 0 || got.Layers[0].State != pulls.Unpacking {
			t.Errorf("after the download: %v", got)
		}
		here["id:a"] = true // now it is unpacked
		if err := read(p.Origin(&slow{failAt: 300}), blobs[1]); err == nil {
			t.Error("a broken download is read to its end")
		}
		p.Leave("default/web")
		got := tr.List()
		if l := got[0].Layers; l[0].State != pulls.Done || l[1].State != pulls.Waiting || l[1].Bytes != 300 || got[0].For != nil || got[0].Waiters != 1 || got[1].Bytes != 1000 {
			t.Errorf("after a download that broke off: %+v", got)
		}
		other.End(nil)
		p.End(errors.New("broken"))
		recent := tr.Recent()
		if len(tr.List()) != 0 || len(recent) != 2 || recent[0].Err != "broken" || recent[0].Ended.IsZero() || recent[1].Err != "" {
			t.Errorf("at the end: %v and %v", tr.List(), recent)
		}
	})
}

// The list of finished pulls is bounded, and the methods of a nil Pull do nothing.
func TestBounds(t *testing.T) {
	var tr progress.Tracker
	for range 100 {
		p := tr.New("x")
		p.Begin()
		p.End(nil)
	}
	if n := len(tr.Recent()); n < 10 || n > 50 {
		t.Errorf("%d pulls are remembered", n)
	}
	var nobody *progress.Pull
	nobody.Join("a/b")
	nobody.Leave("a/b")
	nobody.SetStage("layers")
	nobody.From("x", true)
	nobody.Expect(blobs, ids, store{})
	if from := (&slow{}); nobody.Origin(from) != blob.Origin(from) {
		t.Error("a nil pull is counted")
	}
}
