package oci

import (
	"bytes"
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/periodic"
)

// The readers of cgroup files. A file that is missing, because its controller is off or the
// cgroup has just gone, or that cannot be parsed, counts as zero: one counter must not cost all
// the others. Nothing here allocates except for the results: the counters of a full node are
// read every few seconds.

// A groupFiles reads files of one cgroup. It must be closed.
type groupFiles struct {
	dirs  map[string]string // absolute directories by controller; "" = the v2 one
	kept  *keptFiles        // the caller holds its lock; nil = open each file anew
	buf   *[]byte
	stale bool // a kept file belongs to a removed cgroup
}

const (
	fileBuffer = 8 << 10 // holds all but io.stat of many devices
	fileMax    = 1 << 20
)

var fileBuffers = sync.Pool{New: func() any { b := make([]byte, fileBuffer); return &b }}

func openGroup(dirs map[string]string, kept *keptFiles) *groupFiles {
	return &groupFiles{dirs: dirs, kept: kept, buf: fileBuffers.Get().(*[]byte)}
}

func (g *groupFiles) close() { fileBuffers.Put(g.buf) }

// text returns the content of a file, valid until the next call; nil if it cannot be read.
func (g *groupFiles) text(controller, name string) []byte {
	dir := g.dirs[controller]
	if dir == "" {
		return nil
	}
	if g.kept != nil {
		if fd, ok := g.kept.find(controller, name); ok {
			return g.read(fd)
		}
	}
	fd, err := openFile(filepath.Join(dir, name))
	if err != nil {
		return nil
	}
	data := g.read(fd)
	if g.kept == nil || !g.kept.keep(controller, name, fd) {
		unix.Close(fd)
	}
	return data
}

func openFile(path string) (fd int, err error) {
	err = unix.EINTR
	for err == unix.EINTR {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	return fd, err
}

// read reads a file from its start. The kernel produces the text in one piece, so a read shorter
// than the buffer is complete.
func (g *groupFiles) read(fd int) []byte {
	for {
		n, err := unix.Pread(fd, *g.buf, 0)
		switch {
		case err == unix.EINTR:
		case err != nil:
			g.stale = g.stale || err == unix.ENODEV // kernfs: the file was removed
			return nil
		case n < len(*g.buf) || n >= fileMax:
			return (*g.buf)[:n]
		default:
			*g.buf = make([]byte, 2*n)
		}
	}
}

// has reports whether a file exists.
func (g *groupFiles) has(controller, name string) bool {
	dir := g.dirs[controller]
	var st unix.Stat_t
	return dir != "" && unix.Stat(filepath.Join(dir, name), &st) == nil
}

// number reads a file that holds one number, or "max" (0).
func (g *groupFiles) number(controller, name string) uint64 {
	n, _ := g.limit(controller, name)
	return n
}

// limit reads a number; !ok without one, as in "max".
func (g *groupFiles) limit(controller, name string) (n uint64, ok bool) {
	return parseNumber(bytes.TrimSpace(g.text(controller, name)))
}

// A counter is the name of a number in a file, and where it belongs.
type counter struct {
	name string
	to   *uint64
}

// numbers reads those counters of a file that has a name and a number on each.
func (g *groupFiles) numbers(controller, name string, wanted ...counter) {
	for text := range bytes.Lines(g.text(controller, name)) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(text), []byte(" "))
		for _, c := range wanted {
			if c.name == string(name) {
				*c.to, _ = parseNumber(value)
			}
		}
	}
}

// ioStat reads io.stat of v2: "8:0 rbytes=1 wbytes=2 rios=3 wios=4 …". A device without counters
// has not been used.
func (g *groupFiles) ioStat() []DeviceIO {
	var list []DeviceIO
	for line := range bytes.Lines(g.text("", "io.stat")) {
		device, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if len(rest) == 0 {
			continue
		}
		d := DeviceIO{Device: string(device)}
		for field := range bytes.FieldsSeq(rest) {
			name, value, _ := bytes.Cut(field, []byte("="))
			n, ok := parseNumber(value)
			if !ok {
				continue
			}
			switch string(name) {
			case "rbytes":
				d.ReadBytes = n
			case "wbytes":
				d.WriteBytes = n
			case "rios":
				d.Reads = n
			case "wios":
				d.Writes = n
			}
		}
		list = append(list, d)
	}
	return list
}

// blkio reads the two blkio files of v1, with lines such as "8:0 Read 1"; the last line of each
// is a total.
func (g *groupFiles) blkio() []DeviceIO {
	var list []DeviceIO
	of := func(device []byte) *DeviceIO {
		for i := range list {
			if list[i].Device == string(device) {
				return &list[i]
			}
		}
		list = append(list, DeviceIO{Device: string(device)})
		return &list[len(list)-1]
	}
	read := func(name string, reads, writes func(*DeviceIO) *uint64) {
		for line := range bytes.Lines(g.text("blkio", name)) {
			device, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
			kind, value, _ := bytes.Cut(rest, []byte(" "))
			n, ok := parseNumber(value)
			if !ok {
				continue
			}
			switch string(kind) {
			case "Read":
				*reads(of(device)) = n
			case "Write":
				*writes(of(device)) = n
			}
		}
	}
	read("blkio.throttle.io_service_bytes_recursive",
		func(d *DeviceIO) *uint64 { return &d.ReadBytes }, func(d *DeviceIO) *uint64 { return &d.WriteBytes })
	read("blkio.throttle.io_serviced_recursive",
		func(d *DeviceIO) *uint64 { return &d.Reads }, func(d *DeviceIO) *uint64 { return &d.Writes })
	return list
}

// psi reads a pressure file of v2; nil if the kernel has none. Its lines look like "some
// avg10=1.50 avg60=0.25 avg300=0.00 total=7".
func (g *groupFiles) psi(name string) *PSI {
	data := g.text("", name)
	if data == nil {
		return nil
	}
	psi := new(PSI)
	for line := range bytes.Lines(data) {
		kind, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		switch string(kind) {
		case "some":
			psi.Some = parsePSI(rest)
		case "full":
			psi.Full = parsePSI(rest)
		}
	}
	return psi
}

func parsePSI(fields []byte) PSIData {
	var d PSIData
	for field := range bytes.FieldsSeq(fields) {
		name, value, _ := bytes.Cut(field, []byte("="))
		switch string(name) {
		case "avg10":
			d.Avg10 = parseDecimal(value)
		case "avg60":
			d.Avg60 = parseDecimal(value)
		case "avg300":
			d.Avg300 = parseDecimal(value)
		case "total":
			d.Total, _ = parseNumber(value)
		}
	}
	return d
}

// parseNumber is strconv.ParseUint of a decimal number without the copy to a string.
func parseNumber(text []byte) (n uint64, ok bool) {
	for _, c := range text {
		digit := uint64(c - '0')
		if digit > 9 || n > (1<<64-1-digit)/10 {
			return 0, false
		}
		n = 10*n + digit
	}
	return n, len(text) > 0
}

// parseDecimal parses a number such as 0.25; anything else is 0.
func parseDecimal(text []byte) float64 {
	whole, fraction, _ := bytes.Cut(text, []byte("."))
	n, ok := parseNumber(whole)
	if !ok {
		return 0
	}
	scale := uint64(1)
	for _, c := range fraction {
		digit := uint64(c - '0')
		if digit > 9 || n > 1<<50 {
			return 0
		}
		n, scale = 10*n+digit, 10*scale
	}
	return float64(n) / float64(scale)
}

// readNumber reads one file that holds a number, or "max" (0).
func readNumber(path string) uint64 {
	g := openGroup(map[string]string{"": filepath.Dir(path)}, nil)
	defer g.close()
	return g.number("", filepath.Base(path))
}

// Opening a cgroup file takes the kernel eight times as long as reading it, so the files that
// CRI's statistics are made of stay open from their first use. An open file costs the kernel
// some 5 KiB, hence the limits:
//
//   - keptMax files of all containers and sandboxes together, and half of RLIMIT_NOFILE. Files
//     beyond that are opened each time.
//   - keptIdle without a reader.
//
// A cgroup can be removed and created again under the same path, as the kubelet does with a
// pod's: the open file then belongs to the removed one and cannot be read.
const (
	keptMax  = 20_000 // 1000 pods of one container
	keptIdle = 2 * time.Minute
)

// A keptBudget counts the kept files and limits them.
type keptBudget struct {
	max  int64
	used atomic.Int64
}

func newKeptBudget() *keptBudget {
	limit := unix.Rlimit{}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // cannot fail; 0 keeps none
	return &keptBudget{max: int64(min(keptMax, limit.Cur/2))}
}

// keptFiles are the open files of one cgroup. The zero value keeps none.
type keptFiles struct {
	budget *keptBudget
	over   atomic.Bool // for good

	mu    sync.Mutex // held while files are read
	files []keptFile // guarded by mu
	used  time.Time  // guarded by mu
}

type keptFile struct {
	controller, name string
	fd               int
}

// find returns a kept file. The caller holds mu.
func (k *keptFiles) find(controller, name string) (fd int, ok bool) {
	for i := range k.files {
		if f := &k.files[i]; f.name == name && f.controller == controller {
			return f.fd, true
		}
	}
	return 0, false
}

// keep takes ownership of a file, and reports whether it did. The caller holds mu.
func (k *keptFiles) keep(controller, name string, fd int) bool {
	if k.budget == nil || k.over.Load() {
		return false
	}
	if k.budget.used.Add(1) > k.budget.max {
		k.budget.used.Add(-1)
		return false
	}
	k.files = append(k.files, keptFile{controller, name, fd})
	return true
}

// drop closes the files. The caller holds mu.
func (k *keptFiles) drop() {
	for _, f := range k.files {
		unix.Close(f.fd)
		k.budget.used.Add(-1)
	}
	k.files = nil
}

// read reads the counters that CRI's statistics are made of.
func (k *keptFiles) read(dirs map[string]string) (Stats, error) {
	k.mu.Lock()
	k.used = time.Now()
	s, stale, err := readStats(dirs, k, false)
	if stale { // at least one file belongs to a removed cgroup
		k.drop()
		s, _, err = readStats(dirs, k, false)
	}
	if err != nil {
		k.drop()
	}
	k.mu.Unlock()
	k.tidy()
	return s, err
}

// close closes the files for good. It does not wait for a reader, which then closes them itself.
func (k *keptFiles) close() {
	k.over.Store(true)
	k.tidy()
}

// tidy closes the files if close was called and no read is under way.
func (k *keptFiles) tidy() {
	if k.over.Load() && k.mu.TryLock() {
		k.drop()
		k.mu.Unlock()
	}
}

// rest closes the files if they were not read since.
func (k *keptFiles) rest(since time.Time) {
	if !k.mu.TryLock() {
		return // a read is under way
	}
	if k.used.Before(since) {
		k.drop()
	}
	k.mu.Unlock()
	k.tidy()
}

// restKept closes files that have not been read for a while, until ctx ends.
func (r *Runtime) restKept(ctx context.Context) {
	periodic.Run(ctx, keptIdle, func(context.Context) {
		since := time.Now().Add(-keptIdle)
		for _, c := range r.containers.list() {
			c.counters.rest(since)
		}
		for _, sb := range r.sandboxes.list() {
			sb.counters.rest(since)
		}
	})
}
