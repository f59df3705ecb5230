package executor

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/flock"
)

// Output that has been read from a container but is not in its log yet is in hand. There is
// no other copy, so it would be lost if we were killed at that moment. Therefore this memory
// is a mapped file in the state directory: the executor that adopts the container finds there
// what we had in hand, and completes the log.
//
// The header of a hand is valid at any moment, whichever instruction is our last:
//
//	asked         where read(2) is about to put bytes, or has just put them
//	region        where unlogged bytes are
//	first, size   they are being written, since the log had that size
//	region        the bytes that remain
//	size = 0      nothing is being written any more
//
// The bytes themselves show how far read(2) got: before it, they have a pattern.
//
// Where somebody removes the file, another one takes its place (look). What is in hand then stays
// where no successor finds it, until it is logged.

// A hand holds output of a container from when it is read until it is logged. It is used by
// whoever has taken it, and nobody else.
type hand struct {
	*handHeader
	data    []byte // room for handed bytes, then for chunk bytes of read(2)
	of      *handFile
	index   int // in the file; -1 = it is plain memory
	pattern []byte
	upto    int // how many of its bytes are being written
}

// A handHeader is the header of a hand in the file. The zero value holds nothing.
type handHeader struct {
	region atomic.Uint64 // see span
	asked  atomic.Uint64 // see span; 0 = read(2) is not being called
	size   atomic.Uint64 // 1 + the log's size before the write; 0 = no write
	first  atomic.Uint64 // the start of region then
	inode  atomic.Uint64 // of the log
	tty    bool
	stderr bool
	length uint8 // of id
	_      [5]byte
	id     [208]byte // of the container
}

var _ [headerSize]byte = [unsafe.Sizeof(handHeader{})]byte{}

const (
	// handed is the longest part of a line that is kept until the rest of it arrives.
	handed = chunk / 2
	// maxHands is the number of hands in the file. When none is free, a hand of plain memory
	// is used: logs on a disk that hangs must not hold up those on others.
	maxHands = 64
	// keptHands is how many of them keep their memory when they are put back.
	keptHands = 8

	handSize   = handed + chunk // of a hand's data
	headerSize = 256
	headersAt  = 4096
	handsAt    = headersAt + maxHands*headerSize
	handsSize  = handsAt + maxHands*handSize
	handsMagic = "crisp in hand 1\n" // with the version
	patternAt  = 64
	patternLen = 64
)

// hands are the hands of an executor; nil = all are plain memory.
type hands struct {
	log  *slog.Logger
	path string

	mu        sync.Mutex
	*handFile         // the one at path; guarded by mu
	left      []*hand // of an earlier executor; guarded by mu
}

// A handFile is a file with hands. Their mu guards what follows the first three fields.
type handFile struct {
	file    *os.File
	memory  []byte // the file, mapped
	pattern []byte

	free  []*hand        // the last is taken first
	there [maxHands]bool // whether each has memory
	taken int            // hands, those of an earlier executor included
}

// openHands opens or makes the file below state.
func openHands(state string, log *slog.Logger) (*hands, error) {
	path := filepath.Join(state, "executor.inhand")
	f, left, err := openHandFile(path)
	if err != nil {
		return nil, err
	}
	return &hands{log: log, path: path, handFile: f, left: left}, nil
}

// look makes another file if somebody has removed or replaced it.
func (hs *hands) look() (again []string, err error) {
	if hs == nil {
		return nil, nil
	}
	if flock.IsAt(hs.file, hs.path) { // and not only whether there is one: it may be half made
		return nil, nil
	}
	next, left, err := openHandFile(hs.path)
	if err != nil {
		return nil, err
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	last := hs.handFile
	hs.handFile, hs.left = next, append(hs.left, left...)
	last.release()
	return []string{hs.path}, nil
}

// release closes a file that is no longer used once none of its hands is taken.
func (f *handFile) release() {
	if f.taken == 0 {
		f.file.Close()
		unix.Munmap(f.memory)
	}
}

func openHandFile(path string) (_ *handFile, left []*hand, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	version := make([]byte, len(handsMagic))
	if _, err := f.ReadAt(version, 0); err != nil && err != io.EOF {
		return nil, nil, err
	}
	if string(version) != handsMagic && len(bytes.Trim(version, "\x00")) > 0 {
		return nil, nil, fmt.Errorf("%s is of another version", path)
	}
	if err := f.Truncate(handsSize); err != nil {
		return nil, nil, err
	}
	// Touching a page without room for it on the disk would raise SIGBUS.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, handsAt); err != nil {
		return nil, nil, &os.PathError{Op: "fallocate", Path: path, Err: err}
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, handsSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, &os.PathError{Op: "mmap", Path: path, Err: err}
	}
	magic, pattern := memory[:len(handsMagic)], memory[patternAt:][:patternLen]
	if string(magic) != handsMagic {
		rand.Read(pattern)
		for i := range pattern {
			pattern[i] |= 0x80 // text does not end like that
		}
		copy(magic, handsMagic)
	}
	hf := &handFile{file: f, memory: memory, pattern: pattern}
	for i := maxHands - 1; i >= 0; i-- {
		h := hf.at(i)
		if h.settle(); len(h.unlogged()) > 0 {
			left, hf.there[i] = append(left, h), true
			continue
		}
		hf.drop(h)
	}
	hf.taken = len(left)
	return hf, left, nil
}

// at returns the i-th hand of the file.
func (f *handFile) at(i int) *hand {
	header := (*handHeader)(unsafe.Pointer(&f.memory[headersAt+i*headerSize]))
	return &hand{handHeader: header, data: f.memory[handsAt+i*handSize:][:handSize:handSize], of: f, index: i, pattern: f.pattern}
}

// plainHands are hands in plain memory, which do not outlive us.
var plainHands = sync.Pool{New: func() any { return &hand{handHeader: new(handHeader), data: make([]byte, handSize), index: -1} }}

// take takes a hand for the output o of a container.
func (hs *hands) take(id string, o *output) *hand {
	h := hs.pick(id)
	h.tty, h.stderr = o.tty, o.stream == crilog.Stderr
	h.length = uint8(copy(h.id[:], id))
	h.region.Store(span(handed, handed))
	return h
}

func (hs *hands) pick(id string) *hand {
	if hs == nil || len(id) > len(handHeader{}.id) {
		return plainHands.Get().(*hand)
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	n := len(hs.free) - 1
	if n < 0 {
		return plainHands.Get().(*hand)
	}
	h := hs.free[n]
	if !hs.there[h.index] {
		if unix.Fallocate(int(hs.file.Fd()), 0, h.at(), handSize) != nil {
			return plainHands.Get().(*hand)
		}
		hs.there[h.index] = true
	}
	hs.free = hs.free[:n]
	hs.taken++
	return h
}

// at returns the offset of h's data in the file.
func (h *hand) at() int64 { return int64(handsAt + h.index*handSize) }

// put puts a hand back and drops what it holds.
func (hs *hands) put(h *hand) {
	h.region.Store(0)
	h.asked.Store(0)
	h.size.Store(0)
	if h.index < 0 {
		plainHands.Put(h)
		return
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.of.taken--
	if h.of == hs.handFile {
		h.of.drop(h)
		return
	}
	h.of.release()
}

// drop adds an empty hand to the free ones: at the end, from which they are taken, if it
// keeps its memory, which is expensive to allocate and free.
func (f *handFile) drop(h *hand) {
	if h.index < keptHands {
		f.free = append(f.free, h)
		return
	}
	if f.there[h.index] {
		const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
		f.there[h.index] = unix.Fallocate(int(f.file.Fd()), punch, h.at(), handSize) != nil
	}
	f.free = slices.Insert(f.free, 0, h)
}

// leftOf takes the hands that an earlier executor left for a container, the one that it was
// writing first.
func (hs *hands) leftOf(id string) (of []*hand) {
	if hs == nil {
		return nil
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	var others []*hand
	for _, h := range hs.left {
		switch {
		case h.container() != id:
			others = append(others, h)
		case h.size.Load() != 0:
			of = append([]*hand{h}, of...)
		default:
			of = append(of, h)
		}
	}
	hs.left = others
	return of
}

// forget drops the hands of a container that nobody will adopt.
func (hs *hands) forget(id string) {
	for _, h := range hs.leftOf(id) {
		hs.put(h)
	}
}

// A span is a part of a hand's data, as two indexes in one word.
func span(from, to int) uint64 { return uint64(from)<<32 | uint64(to) }

func ofSpan(word uint64) (from, to int) { return int(word >> 32), int(uint32(word)) }

func (h *hand) bounds() (from, to int) { return ofSpan(h.region.Load()) }

func (h *hand) unlogged() []byte {
	from, to := h.bounds()
	return h.data[from:to]
}

// full reports whether there is no room for more.
func (h *hand) full() bool {
	_, to := h.bounds()
	return to == len(h.data)
}

func (h *hand) container() string { return string(h.id[:min(int(h.length), len(h.id))]) }

func (h *hand) stream() string {
	if h.stderr {
		return crilog.Stderr
	}
	return crilog.Stdout
}

// read reads what is available from fd and fits. It announces the size beforehand, which
// works as nobody else reads fd; if fd is probably empty, it tries one byte first.
func (h *hand) read(fd int, empty bool) (total int, err error) {
	for {
		there := 0
		if !empty || total > 0 {
			there, _ = unix.IoctlGetInt(fd, unix.TIOCINQ) // FIONREAD; read(2) will report any error
		}
		if there == 0 && total > 0 {
			return total, nil
		}
		n, err := unix.Read(fd, h.ask(max(there, 1)))
		h.got(n)
		if n <= 0 && total == 0 {
			return n, err
		}
		if total += max(n, 0); n <= 0 || there > 0 || h.full() {
			return total, nil
		}
	}
}

// ask returns the place for up to n bytes, and announces the read(2).
func (h *hand) ask(n int) []byte {
	_, end := h.bounds()
	room := h.data[end:min(end+n, len(h.data))]
	if h.index >= 0 {
		for have := copy(room, h.pattern); have < len(room); have *= 2 {
			copy(room[have:], room[:have])
		}
		h.asked.Store(span(end, end+len(room)))
	}
	return room
}

// got records that n bytes were read into the place that ask returned.
func (h *hand) got(n int) {
	if n > 0 {
		from, end := h.bounds()
		h.region.Store(span(from, end+n))
	}
	h.asked.Store(0)
}

// settle finds the outcome of a read(2) whose caller was killed, and checks a header that we
// have not written.
func (h *hand) settle() {
	inside := func(from, to int) bool { return 0 <= from && from <= to && to <= len(h.data) }
	from, end := h.bounds()
	at, to := ofSpan(h.asked.Load())
	if !inside(from, end) || !inside(at, to) {
		h.region.Store(0)
		h.asked.Store(0)
		return
	}
	n := 0
	if at == end { // else got was called
		for n = to - at; n > 0 && h.data[at+n-1] == h.pattern[(n-1)%len(h.pattern)]; n-- {
		}
	}
	h.got(n)
	if int(h.first.Load()) != from {
		h.size.Store(0) // the write had finished
	}
}

// Writing and Written implement crilog.Keeper.
func (h *hand) Writing(inode uint64, size int64) {
	from, _ := h.bounds()
	h.inode.Store(inode)
	h.first.Store(uint64(from))
	h.size.Store(uint64(size) + 1)
}

func (h *hand) Written() {
	from, end := h.bounds()
	h.region.Store(span(from+h.upto, end))
	h.size.Store(0)
}

// keep moves what is left to make room behind it.
func (h *hand) keep() {
	left := h.unlogged()
	copy(h.data[handed-len(left):handed], left) // it is at the end, so the two do not overlap
	h.region.Store(span(handed-len(left), handed))
}

// complete writes to a container's log what a killed executor had in hand of it.
func (hs *hands) complete(s settings) {
	for _, h := range hs.leftOf(s.ID) {
		text := h.unlogged()
		h.upto = len(text)
		if h.tty {
			text, _ = cooked(text, false)
		}
		size := int64(h.size.Load()) - 1
		if s.LogPath != "" {
			if err := crilog.Complete(s.LogPath, h.stream(), text, s.LogMaxLine, h, h.inode.Load(), size); err != nil {
				hs.log.Warn("container output was lost", "container", s.ID, "bytes", len(text), "err", err)
			}
		}
		hs.put(h)
	}
}
