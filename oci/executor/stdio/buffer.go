package stdio

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
	"github.com/crisp-cri/crisp/oci/wire"
)

// Output that has been read from a container but is not in its log yet is in a buffer. There is
// no other copy, so it would be lost if we were killed at that moment. Therefore this memory
// is a mapped file in the state directory: the executor that adopts the container finds there
// what was in our buffers, and completes the log.
//
// The header of a buffer is valid at any moment, whichever instruction is our last:
//
//	asked         where read(2) is about to put bytes, or has just put them
//	region        where unlogged bytes are
//	first, size   they are being written, since the log had that size
//	region        the bytes that remain
//	size = 0      nothing is being written any more
//
// The bytes themselves show how far read(2) got: before it, they have a pattern.
//
// If the file is removed, another one takes its place (look). What is in a buffer then stays where
// no successor finds it, until it is logged.

// A buffer holds output of a container from when it is read until it is logged. It is used by
// whoever has taken it, and by no other goroutine.
type buffer struct {
	*bufferHeader
	data    []byte // room for lineStart bytes, then for chunk bytes of read(2)
	of      *bufferFile
	index   int // in the file; -1 = it is plain memory
	pattern []byte
	upto    int  // how many of its bytes are being written
	cr      bool // of a terminal: a \r precedes them
}

// A bufferHeader is the header of a buffer in the file. The zero value holds nothing.
type bufferHeader struct {
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

var _ [headerSize]byte = [unsafe.Sizeof(bufferHeader{})]byte{}

const (
	// lineStart is the longest part of a line that is kept until the rest of it arrives.
	lineStart = chunk / 2
	// maxBuffers is the number of buffers in the file. When none is free, a buffer of plain memory
	// is used: logs on a disk that hangs must not hold up those on others.
	maxBuffers = 64
	// resident is how many of them keep their memory when they are put back.
	resident = 8

	bufferSize = lineStart + chunk // of a buffer's data
	headerSize = 256
	headersAt  = 4096
	buffersAt  = headersAt + maxBuffers*headerSize
	fileSize   = buffersAt + maxBuffers*bufferSize
	fileMagic  = "crisp in hand 1\n" // with the version
	patternAt  = 64
	patternLen = 64
)

// Buffers are the buffers of an executor; nil = all are plain memory.
type Buffers struct {
	log  *slog.Logger
	path string

	mu          sync.Mutex
	*bufferFile           // the one at path; guarded by mu
	remaining   []*buffer // of an earlier executor; guarded by mu
}

// A bufferFile is a file with buffers. Their mu guards what follows the first three fields.
type bufferFile struct {
	file    *os.File
	memory  []byte // the file, mapped
	pattern []byte

	free  []*buffer        // the last is taken first
	there [maxBuffers]bool // whether each has memory
	taken int              // buffers, those of an earlier executor included
}

// OpenBuffers opens or makes the file below state.
func OpenBuffers(state string, log *slog.Logger) (*Buffers, error) {
	path := filepath.Join(state, "executor.inhand")
	f, left, err := openBufferFile(path)
	if err != nil {
		return nil, err
	}
	return &Buffers{log: log, path: path, bufferFile: f, remaining: left}, nil
}

// Look makes another file if it was removed or replaced.
func (hs *Buffers) Look() (again []string, err error) {
	if hs == nil {
		return nil, nil
	}
	if flock.IsAt(hs.file, hs.path) { // and not only whether there is one: it may be half made
		return nil, nil
	}
	next, left, err := openBufferFile(hs.path)
	if err != nil {
		return nil, err
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	last := hs.bufferFile
	hs.bufferFile, hs.remaining = next, append(hs.remaining, left...)
	last.release()
	return []string{hs.path}, nil
}

// release closes a file that is no longer used once none of its buffers is taken.
func (f *bufferFile) release() {
	if f.taken == 0 {
		f.file.Close()
		unix.Munmap(f.memory)
	}
}

func openBufferFile(path string) (_ *bufferFile, left []*buffer, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	version := make([]byte, len(fileMagic))
	if _, err := f.ReadAt(version, 0); err != nil && err != io.EOF {
		return nil, nil, err
	}
	if string(version) != fileMagic && len(bytes.Trim(version, "\x00")) > 0 {
		return nil, nil, fmt.Errorf("%s is of another version", path)
	}
	if err := f.Truncate(fileSize); err != nil {
		return nil, nil, err
	}
	// Touching a page without room for it on the disk would raise SIGBUS.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, buffersAt); err != nil {
		return nil, nil, &os.PathError{Op: "fallocate", Path: path, Err: err}
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, fileSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, &os.PathError{Op: "mmap", Path: path, Err: err}
	}
	magic, pattern := memory[:len(fileMagic)], memory[patternAt:][:patternLen]
	if string(magic) != fileMagic {
		rand.Read(pattern)
		for i := range pattern {
			pattern[i] |= 0x80 // text does not end like that
		}
		copy(magic, fileMagic)
	}
	hf := &bufferFile{file: f, memory: memory, pattern: pattern}
	for i := maxBuffers - 1; i >= 0; i-- {
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

// at returns the i-th buffer of the file.
func (f *bufferFile) at(i int) *buffer {
	header := (*bufferHeader)(unsafe.Pointer(&f.memory[headersAt+i*headerSize]))
	return &buffer{bufferHeader: header, data: f.memory[buffersAt+i*bufferSize:][:bufferSize:bufferSize], of: f, index: i, pattern: f.pattern}
}

// plainBuffers are buffers in plain memory, which do not outlive us.
var plainBuffers = sync.Pool{New: func() any { return &buffer{bufferHeader: new(bufferHeader), data: make([]byte, bufferSize), index: -1} }}

// take takes a buffer for the output o of a container.
func (hs *Buffers) take(id string, o *output) *buffer {
	h := hs.pick(id)
	h.tty, h.stderr = o.tty, o.stream == crilog.Stderr
	h.length = uint8(copy(h.id[:], id))
	h.region.Store(span(lineStart, lineStart))
	return h
}

func (hs *Buffers) pick(id string) *buffer {
	if hs == nil || len(id) > len(bufferHeader{}.id) {
		return plainBuffers.Get().(*buffer)
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	n := len(hs.free) - 1
	if n < 0 {
		return plainBuffers.Get().(*buffer)
	}
	h := hs.free[n]
	if !hs.there[h.index] {
		if unix.Fallocate(int(hs.file.Fd()), 0, h.at(), bufferSize) != nil {
			return plainBuffers.Get().(*buffer)
		}
		hs.there[h.index] = true
	}
	hs.free = hs.free[:n]
	hs.taken++
	return h
}

// at returns the offset of h's data in the file.
func (h *buffer) at() int64 { return int64(buffersAt + h.index*bufferSize) }

// put puts a buffer back and drops what it holds.
func (hs *Buffers) put(h *buffer) {
	h.region.Store(0)
	h.asked.Store(0)
	h.size.Store(0)
	if h.index < 0 {
		plainBuffers.Put(h)
		return
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.of.taken--
	if h.of == hs.bufferFile {
		h.of.drop(h)
		return
	}
	h.of.release()
}

// drop adds an empty buffer to the free ones: at the end, from which they are taken, if it
// keeps its memory, which is expensive to allocate and free.
func (f *bufferFile) drop(h *buffer) {
	if h.index < resident {
		f.free = append(f.free, h)
		return
	}
	if f.there[h.index] {
		const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
		f.there[h.index] = unix.Fallocate(int(f.file.Fd()), punch, h.at(), bufferSize) != nil
	}
	f.free = slices.Insert(f.free, 0, h)
}

// remainingOf takes the buffers that an earlier executor left for a container, the one that it was
// writing first.
func (hs *Buffers) remainingOf(id string) (of []*buffer) {
	if hs == nil {
		return nil
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	var others []*buffer
	for _, h := range hs.remaining {
		switch {
		case h.container() != id:
			others = append(others, h)
		case h.size.Load() != 0:
			of = append([]*buffer{h}, of...)
		default:
			of = append(of, h)
		}
	}
	hs.remaining = others
	return of
}

// Forget drops the buffers of a container that will not be adopted.
func (hs *Buffers) Forget(id string) {
	for _, h := range hs.remainingOf(id) {
		hs.put(h)
	}
}

// A span is a part of a buffer's data, as two indexes in one word.
func span(from, to int) uint64 { return uint64(from)<<32 | uint64(to) }

func ofSpan(word uint64) (from, to int) { return int(word >> 32), int(uint32(word)) }

func (h *buffer) bounds() (from, to int) { return ofSpan(h.region.Load()) }

func (h *buffer) unlogged() []byte {
	from, to := h.bounds()
	return h.data[from:to]
}

// full reports whether there is no room for more.
func (h *buffer) full() bool {
	_, to := h.bounds()
	return to == len(h.data)
}

func (h *buffer) container() string { return string(h.id[:min(int(h.length), len(h.id))]) }

func (h *buffer) stream() string {
	if h.stderr {
		return crilog.Stderr
	}
	return crilog.Stdout
}

// read reads what is available from fd and fits. It announces the size beforehand, which
// works as fd has no other reader; if fd is probably empty, it tries one byte first.
func (h *buffer) read(fd int, empty bool) (total int, err error) {
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
func (h *buffer) ask(n int) []byte {
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
func (h *buffer) got(n int) {
	if n > 0 {
		from, end := h.bounds()
		h.region.Store(span(from, end+n))
	}
	h.asked.Store(0)
}

// settle finds the outcome of a read(2) whose caller was killed, and checks a header that we
// have not written.
func (h *buffer) settle() {
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
func (h *buffer) Writing(inode uint64, size int64) {
	from, _ := h.bounds()
	h.inode.Store(inode)
	h.first.Store(uint64(from))
	h.size.Store(uint64(size) + 1)
}

func (h *buffer) Written(n int) {
	from, end := h.bounds()
	if h.tty {
		n = rawLen(h.data[from:from+h.upto], h.cr, n)
		h.cr = false
	}
	h.upto -= n
	h.region.Store(span(from+n, end))
	h.size.Store(0)
}

// keep moves what is left to make room behind it.
func (h *buffer) keep() {
	left := h.unlogged()
	copy(h.data[lineStart-len(left):lineStart], left) // it is at the end, so the two do not overlap
	h.region.Store(span(lineStart-len(left), lineStart))
}

// Complete writes to a container's log what a killed executor had in its buffers.
func (hs *Buffers) Complete(s wire.Settings) {
	for _, h := range hs.remainingOf(s.ID) {
		text := h.unlogged()
		h.upto = len(text)
		if h.tty {
			text, _ = cooked(text, false)
		}
		size := int64(h.size.Load()) - 1
		if s.LogPath != "" {
			if err := crilog.Complete(s.LogPath, h.stream(), text, s.LogMaxLine, s.LogLimit, h, h.inode.Load(), size); err != nil {
				hs.log.Warn("container output was lost", "container", s.ID, "bytes", len(text), "err", err)
			}
		}
		hs.put(h)
	}
}
