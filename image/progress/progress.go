// Package progress keeps how far the pulls of a store are. It counts what is read of each
// blob, by a reader around the one that the origin gives: whoever unpacks the layer knows
// nothing of it.
//
// A layer that two pulls want is unpacked by one of them; both are told how far it is.
package progress

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/image/blob"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/opencontainers/go-digest"
)

// maxRecent bounds the ended pulls that are remembered.
const maxRecent = 32

// A Tracker has the pulls under way, and the last that have ended. The zero value is ready.
type Tracker struct {
	mu     sync.Mutex
	pulls  []*Pull      // in the order of their beginning; guarded by mu
	recent []pulls.Pull // the last is the youngest; guarded by mu
}

// A Pull is one pull under way.
type Pull struct {
	t     *Tracker
	image string
	begun time.Time

	mu      sync.Mutex
	stage   string         // guarded by mu
	from    string         // guarded by mu
	mirror  bool           // guarded by mu
	waiters int            // guarded by mu
	pods    map[string]int // that wait, with how many calls; guarded by mu
	layers  []*layer       // nil = not known yet; guarded by mu
	has     Layers         // guarded by mu
	meter   meter          // guarded by mu
}

// Layers are those on the node.
type Layers interface {
	// Has reports whether the layer of this identity is here, and whole.
	Has(id digest.Digest) bool
}

// layer is a layer of a pull. Of two that are the same only the first is kept.
type layer struct {
	digest digest.Digest
	id     digest.Digest
	size   int64
	bytes  int64
	state  string
}

// New returns a pull of the image with this full name, which is to begin now.
func (t *Tracker) New(image string) *Pull {
	now := time.Now()
	return &Pull{t: t, image: image, begun: now, pods: make(map[string]int), meter: meter{begun: now}}
}

// Begin has the pull listed.
func (p *Pull) Begin() {
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	p.t.pulls = append(p.t.pulls, p)
}

// End ends it; err is why it has failed.
func (p *Pull) End(err error) {
	last := p.snapshot(time.Now())
	last.Stage, last.Rate, last.Ended = "", 0, time.Now()
	if err != nil {
		last.Err = err.Error()
	}
	t := p.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pulls = slices.DeleteFunc(t.pulls, func(other *Pull) bool { return other == p })
	t.recent = append(t.recent, last)
	t.recent = t.recent[max(0, len(t.recent)-maxRecent):]
}

// List returns the pulls under way, in the order of their beginning.
func (t *Tracker) List() []pulls.Pull {
	t.mu.Lock()
	all := slices.Clone(t.pulls)
	t.mu.Unlock()
	now := time.Now()
	list := make([]pulls.Pull, 0, len(all))
	coming := make(map[string]pulls.Layer) // of any pull, by digest
	for _, p := range all {
		list = append(list, p.snapshot(now))
		for _, l := range list[len(list)-1].Layers {
			if l.State == pulls.Downloading || l.State == pulls.Unpacking {
				coming[l.Digest] = l
			}
		}
	}
	for i := range list {
		p := &list[i]
		for j := range p.Layers {
			l := &p.Layers[j]
			if other, ok := coming[l.Digest]; ok && l.State == pulls.Waiting {
				p.Bytes += other.Bytes - l.Bytes
				*l = other
			}
		}
	}
	return list
}

// Recent returns the last pulls that have ended, the youngest first.
func (t *Tracker) Recent() []pulls.Pull {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.Clone(t.recent)
	slices.Reverse(list)
	return list
}

// Join counts a call that waits, on behalf of a pod (namespace/name) if that is not "". It
// may be called of a nil Pull, as may all methods below.
func (p *Pull) Join(pod string) { p.count(pod, 1) }

// Leave counts one that waits no longer.
func (p *Pull) Leave(pod string) { p.count(pod, -1) }

func (p *Pull) count(pod string, n int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiters += n
	if pod == "" {
		return
	}
	if p.pods[pod] += n; p.pods[pod] == 0 {
		delete(p.pods, pod)
	}
}

// SetStage says what the pull does now.
func (p *Pull) SetStage(name string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stage = name
}

// From says which place the image comes from.
func (p *Pull) From(place string, mirror bool) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from, p.mirror = place, mirror
}

// Expect says which layers the image has; ids are the digests of their content, and has are
// the layers that need not come.
func (p *Pull) Expect(blobs []blob.Blob, ids []digest.Digest, has Layers) {
	if p == nil {
		return
	}
	layers := []*layer{}
	for i, b := range blobs {
		l := &layer{digest: b.Digest, id: b.Identity(ids[i]), size: b.Size, state: pulls.Waiting}
		if slices.ContainsFunc(layers, func(other *layer) bool { return other.digest == l.digest && other.id == l.id }) {
			continue
		}
		if has.Has(l.id) {
			l.state = pulls.Here
		}
		layers = append(layers, l)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.layers, p.has = layers, has
}

// snapshot returns how far the pull is, but for layers that come by another one.
func (p *Pull) snapshot(now time.Time) pulls.Pull {
	p.mu.Lock()
	s := pulls.Pull{
		Image: p.image, From: p.from, Mirror: p.mirror, Stage: p.stage, Begun: p.begun,
		Waiters: p.waiters, For: slices.Sorted(maps.Keys(p.pods)), Rate: p.meter.rate(now), AllKnown: p.layers != nil,
	}
	has := p.has
	layers := make([]layer, len(p.layers))
	for i, l := range p.layers {
		layers[i] = *l
	}
	p.mu.Unlock()
	for _, l := range layers {
		shown := pulls.Layer{Digest: l.digest.String(), Size: l.size, Bytes: l.bytes, State: l.state}
		if l.state != pulls.Here {
			if l.state != pulls.Downloading && has.Has(l.id) {
				shown.State, shown.Bytes = pulls.Done, max(l.size, l.bytes)
			}
			s.Bytes += shown.Bytes
			s.Total += max(l.size, 0)
			s.AllKnown = s.AllKnown && l.size >= 0
		}
		s.Layers = append(s.Layers, shown)
	}
	return s
}

// Origin returns from with its blobs counted.
func (p *Pull) Origin(from blob.Origin) blob.Origin {
	if p == nil {
		return from
	}
	return origin{from, p}
}

// A placed origin knows where it is: what one mirror does not give, the next one may.
type placed interface {
	Place() (location string, mirror bool)
}

type origin struct {
	blob.Origin
	pull *Pull
}

// Open implements blob.Origin.
func (o origin) Open(ctx context.Context, b blob.Blob) (io.ReadCloser, error) {
	body, err := o.Origin.Open(ctx, b)
	if err != nil {
		return nil, err
	}
	if from, ok := o.Origin.(placed); ok {
		o.pull.From(from.Place())
	}
	l := o.pull.begin(b.Digest)
	if l == nil { // a config
		return body, nil
	}
	return &counter{body, o.pull, l}, nil
}

// begin returns the layer that is the blob of this digest, of which nothing has come yet.
func (p *Pull) begin(d digest.Digest) *layer {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.layers, func(l *layer) bool { return l.digest == d })
	if i < 0 {
		return nil
	}
	l := p.layers[i]
	l.bytes, l.state = 0, pulls.Downloading
	return l
}

// A counter counts what is read of a layer.
type counter struct {
	io.ReadCloser
	pull  *Pull
	layer *layer
}

// Read implements io.Reader.
func (c *counter) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	p := c.pull
	p.mu.Lock()
	defer p.mu.Unlock()
	c.layer.bytes += int64(n)
	p.meter.add(time.Now(), n)
	if err == io.EOF {
		c.layer.state = pulls.Unpacking
	}
	return n, err
}

// Close implements io.Closer. What did not come to its end begins anew, if at all.
func (c *counter) Close() error {
	c.pull.mu.Lock()
	if c.layer.state == pulls.Downloading && c.layer.bytes != c.layer.size {
		c.layer.state = pulls.Waiting
	} else {
		c.layer.state = pulls.Unpacking
	}
	c.pull.mu.Unlock()
	return c.ReadCloser.Close()
}

// window is how many seconds a rate is the mean of: long enough to be steady, short enough
// to show that a registry has fallen silent.
const window = 5

// A meter measures a rate.
type meter struct {
	begun   time.Time
	seconds [window + 1]struct{ at, bytes int64 }
}

func (m *meter) add(now time.Time, n int) {
	at := now.Unix()
	s := &m.seconds[at%int64(len(m.seconds))]
	if s.at != at {
		s.at, s.bytes = at, 0
	}
	s.bytes += int64(n)
}

// rate is in bytes a second, of the last whole seconds and the one that has begun.
func (m *meter) rate(now time.Time) float64 {
	since := time.Unix(now.Unix()-window+1, 0)
	var sum int64
	for _, s := range m.seconds {
		if s.at >= since.Unix() && s.at <= now.Unix() {
			sum += s.bytes
		}
	}
	if since.Before(m.begun) {
		since = m.begun
	}
	return float64(sum) / max(now.Sub(since), minSpan).Seconds()
}

// minSpan is the shortest time that a rate is measured over: what has come in the first
// moment was on its way before.
const minSpan = 100 * time.Millisecond
