package powercut

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/test/filetrace"
)

// An enumeration makes the disks that power cuts may leave and has them checked.
type enumeration struct {
	c       Case
	disk    *disk
	script  script
	known   map[[32]byte]error // what Check said of a disk
	room    string             // where disks are made
	limit   int                // of combinations that are all tried
	samples int                // of more than that
	made    int
}

func newEnumeration(c Case, d *disk, s script, room string) *enumeration {
	e := &enumeration{c: c, disk: d, script: s, known: map[[32]byte]error{}, room: room, limit: 48, samples: 16}
	if os.Getenv("CRISP_POWERCUT") == "full" {
		e.limit, e.samples = 4096, 512
	}
	return e
}

// all checks what power cuts leave, and returns what is wrong, at most three such.
func (e *enumeration) all() (faults []string) {
	for n := range len(e.disk.ops) + 1 {
		for _, s := range e.states(n, -1) {
			if err := e.check(s, n); err != nil {
				faults = append(faults, fmt.Sprintf("power cut %s\n%s\n\t%v", e.moment(n), e.lost(s, n), err))
				if len(faults) == 3 {
					return faults
				}
			}
		}
	}
	return faults
}

// without checks the case against records that lack one sync each.
func (e *enumeration) without() (faults []string) {
	reasons := maps.Clone(e.c.Redundant)
	seen := map[string]int{}
	for i, op := range e.disk.ops {
		if op.Kind != filetrace.Fsync && op.Kind != filetrace.Syncfs {
			continue
		}
		line := strings.Join(strings.Fields(e.script.lines[i]), " ")
		if seen[line]++; seen[line] > 1 {
			line = fmt.Sprintf("%s #%d", line, seen[line])
		}
		missed := e.missed(i)
		_, excused := reasons[line]
		delete(reasons, line)
		switch {
		case !missed && !excused:
			faults = append(faults, fmt.Sprintf("no test would notice if this sync were gone: %q %s\n\tTake it out, or give the reason for it in Redundant", line, e.moment(i)))
		case missed && excused:
			faults = append(faults, fmt.Sprintf("this sync is not redundant, without it something is lost: %q", line))
		}
	}
	for line := range reasons {
		faults = append(faults, fmt.Sprintf("Redundant speaks of %q, which is not in the record", line))
	}
	return faults
}

// A choice is an object that is not wholly on disk, and its possible variants.
type choice struct {
	object   int
	dir      bool
	variants []int // the least first, the most last
}

// choices returns the choices after n operations.
func (e *enumeration) choices(n, without int) []choice {
	s := state{without: without}
	var all []choice
	for i, o := range e.disk.objects {
		synced := s.synced(o, n)
		if o.file.Mode&fileType == dirType {
			from, to := countBelow(o.entries, synced), countBelow(o.entries, n)
			if synced < 0 {
				from = 0
			}
			c := choice{object: i, dir: true}
			for k := from; k <= to; k++ {
				c.variants = append(c.variants, k)
			}
			all = append(all, c)
			continue
		}
		var write, meta bool
		for _, k := range o.changes[:countBelow(o.changes, n)] {
			if k > synced {
				write = write || e.disk.ops[k].Kind == filetrace.Write
				meta = meta || e.disk.ops[k].Kind == filetrace.Meta
			}
		}
		c := choice{object: i, variants: []int{int(lost)}}
		if write {
			c.variants = append(c.variants, int(half), int(zeroes))
		}
		if write && meta {
			c.variants = append(c.variants, int(metaLost))
		}
		if write || meta {
			c.variants = append(c.variants, int(kept))
		}
		all = append(all, c)
	}
	return all
}

// states returns the combinations that are tried after n operations.
func (e *enumeration) states(n, without int) []state {
	all := e.choices(n, without)
	base := state{without: without, entries: map[int]int{}, files: map[int]variant{}}
	var open []choice
	total := 1
	for _, c := range all {
		base.set(c, 0)
		if len(c.variants) > 1 {
			open = append(open, c)
			total = min(total*len(c.variants), 1<<20)
		}
	}
	var states []state
	add := func(pick func(i int, c choice) int) {
		s := state{without: without, entries: maps.Clone(base.entries), files: maps.Clone(base.files)}
		for i, c := range open {
			s.set(c, pick(i, c))
		}
		e.whole(&s, n)
		states = append(states, s)
	}
	if total <= e.limit {
		for k := range total {
			add(func(i int, c choice) int {
				v := k % len(c.variants)
				k /= len(c.variants)
				return v
			})
		}
		return states
	}
	least := func(int, choice) int { return 0 }
	most := func(_ int, c choice) int { return len(c.variants) - 1 }
	add(least)
	add(most)
	for i, c := range open {
		for v := range c.variants {
			for _, others := range []func(int, choice) int{least, most} {
				add(func(j int, d choice) int {
					if i == j {
						return v
					}
					return others(j, d)
				})
			}
		}
	}
	random := rand.New(rand.NewPCG(uint64(n), 1))
	for range e.samples {
		add(func(_ int, c choice) int { return random.IntN(len(c.variants)) })
	}
	return states
}

func (s *state) set(c choice, v int) {
	if c.dir {
		s.entries[c.object] = c.variants[v]
	} else {
		s.files[c.object] = variant(c.variants[v])
	}
}

// whole makes renames between two directories one step: if one directory has it, so has
// the other, with everything that came before in that one.
func (e *enumeration) whole(s *state, n int) {
	for changed := true; changed; {
		changed = false
		for i := range e.disk.ops[:n] {
			from, to := e.disk.dir[i], e.disk.to[i]
			if from < 0 || to < 0 || from == to {
				continue
			}
			a := countBelow(e.disk.objects[from].entries, i) + 1
			b := countBelow(e.disk.objects[to].entries, i) + 1
			if s.entries[from] >= a && s.entries[to] < b {
				s.entries[to], changed = b, true
			}
			if s.entries[to] >= b && s.entries[from] < a {
				s.entries[from], changed = a, true
			}
		}
	}
}

// safe returns what the code had called safe by operation n.
func (e *enumeration) safe(n int) []string {
	var safe []string
	for _, op := range e.disk.ops[:n] {
		if op.Kind == filetrace.Marked {
			safe = append(safe, op.Text)
		}
	}
	return safe
}

// check makes the disk of s after n operations and checks it, unless an identical one
// was.
func (e *enumeration) check(s state, n int) error {
	safe := e.safe(n)
	all := e.disk.tree(s, n)
	key := hash(all, len(safe))
	if err, ok := e.known[key]; ok {
		return err
	}
	e.made++
	dir := filepath.Join(e.room, fmt.Sprint(e.made))
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = write(dir, all)
	}
	if err == nil {
		err = e.c.Check(dir, safe)
	}
	e.known[key] = err
	if rerr := os.RemoveAll(dir); err == nil && rerr != nil {
		return rerr
	}
	return err
}

// missed reports whether Check notices that the sync at operation i did not happen.
func (e *enumeration) missed(i int) bool {
	for n := i + 1; n <= len(e.disk.ops); n++ {
		if n < len(e.disk.ops) && !e.matters(n) {
			continue
		}
		for _, s := range e.states(n, i) {
			if e.check(s, n) != nil {
				return true
			}
		}
	}
	return false
}

// matters leaves out power cuts before the next call of safe, or the next change of a
// name: what was lost before is lost then, too.
func (e *enumeration) matters(n int) bool {
	switch e.disk.ops[n-1].Kind {
	case filetrace.Write, filetrace.Meta, filetrace.Fsync, filetrace.Syncfs:
		return false
	}
	return true
}

// moment describes when a power cut is.
func (e *enumeration) moment(n int) string {
	if n == 0 {
		return "at the start"
	}
	from := max(0, n-6)
	return "after\n\t" + strings.Join(e.script.lines[from:n], "\n\t")
}

// lost describes how the disk differs from what the code had done.
func (e *enumeration) lost(s state, n int) string {
	full := state{without: s.without, entries: map[int]int{}, files: map[int]variant{}}
	for i, o := range e.disk.objects {
		full.entries[i] = countBelow(o.entries, n)
		full.files[i] = kept
	}
	describe := func(all []node) map[string]string {
		m := map[string]string{}
		for _, n := range all {
			m[n.path] = fmt.Sprintf("%o, %d bytes, %.60q", n.file.Mode&0o7777, len(n.content), n.content)
			if n.file.Mode&fileType == dirType {
				m[n.path] = "directory"
			}
		}
		return m
	}
	want, got := describe(e.disk.tree(full, n)), describe(e.disk.tree(s, n))
	var out []string
	for _, path := range slices.Sorted(maps.Keys(got)) {
		out = append(out, fmt.Sprintf("\t  on disk: %s: %s", path, got[path]))
	}
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if _, ok := got[path]; !ok {
			out = append(out, "\t  lost:    "+path)
		}
	}
	return strings.Join(out, "\n")
}
