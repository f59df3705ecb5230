// Package progress tracks the progress of the pulls of a store. It counts the bytes read of each
// blob with a reader around the origin's; the code that unpacks the layer does not notice.
//
// If two pulls need the same layer, one of them unpacks it; both show its progress.
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

// maxRecent bounds the number of ended pulls remembered.
const maxRecent = 32

// A Tracker has the pulls under way, and the last that have ended. The zero value is ready.
type Tracker struct {
	mu     sync.Mutex
	pulls  []*Pull      // oldest first; guarded by mu
	recent []pulls.Pull // latest last; guarded by mu
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
	pods    map[string]int // waiting pods, with their numbers of calls; guarded by mu
	layers  []*layer       // nil = not known yet; guarded by mu
	has     Layers         // guarded by mu
	meter   meter          // guarded by mu
}

// Layers are the layers on the node.
type Layers interface {
	// Has reports whether the complete layer of this identity is here.
	Has(id digest.Digest) bool
}

// layer is a layer of a pull. If two are the same only the first is kept.
type layer struct {
	digest digest.Digest
	id     digest.Digest
	size   int64
	bytes  int64
	state  string
}

// New returns a pull of the image with this full name, which begins now.
func (t *Tracker) New(image string) *Pull {
	now := time.Now()
	return &Pull{t: t, image: image, begun: now, pods: make(map[string]int), meter: meter{begun: now}}
}

// Begin adds the pull to the list.
func (p *Pull) Begin() {
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	p.t.pulls = append(p.t.pulls, p)
}

// End ends the pull; err is why it failed.
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

// List returns the pulls under way, oldest first.
func (t *Tracker) List() []pulls.Pull {
	t.mu.Lock()
	all := slices.Clone(t.pulls)
	t.mu.Unlock()
	now := time.Now()
	list := make([]pulls.Pull, 0, len(all))
	coming := make(map[string]pulls.Layer) // by any pull, by digest
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

// Recent returns the last pulls that have ended, latest first.
func (t *Tracker) Recent() []pulls.Pull {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.Clone(t.recent)
	slices.Reverse(list)
	return list
}

// Join counts a call that waits, on behalf of a pod (namespace/name) if that is not "". It may
// be called on a nil Pull, as may all methods below.
func (p *Pull) Join(pod string) { p.count(pod, 1) }

// Leave counts a call that no longer waits.
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

// From says from which place the image comes.
func (p *Pull) From(place string, mirror bool) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from, p.mirror = place, mirror
}

// Expect sets the layers of the image; ids are the digests of their content, and has the layers
// that need not be fetched.
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

// snapshot returns the progress of the pull, except for layers fetched by another pull.
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

// A placed origin knows which place it uses: if one mirror does not provide something, the next
// may.
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

// begin resets the layer that is the blob of this digest, and returns it.
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

// A counter counts the bytes read of a layer.
type counter struct {
	io.ReadCloser
	pull  *Pull
	layer *layer
}

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

// Close implements io.Closer. A layer that did not end starts over, if it is read again at all.
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

// window is the number of seconds over which a rate is averaged: long enough to be steady, short
// enough to show that a registry has stopped sending.
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

// rate returns bytes per second, over the last whole seconds and the current one.
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

// minSpan is the shortest time over which a rate is measured: bytes that come in the first
// moment were on their way before.
const minSpan = 100 * time.Millisecond
