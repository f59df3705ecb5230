//go:build isal && cgo

package gunzip

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include <isa-l/igzip_lib.h>

static void (*inflate_init)(struct inflate_state *);
static int (*inflate_step)(struct inflate_state *);

static int load(void)
{
	void *lib = dlopen("libisal.so.2", RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return 0;
	inflate_init = (void (*)(struct inflate_state *))dlsym(lib, "isal_inflate_init");
	inflate_step = (int (*)(struct inflate_state *))dlsym(lib, "isal_inflate");
	return inflate_init && inflate_step;
}

static void begin(struct inflate_state *s)
{
	inflate_init(s);
	s->crc_flag = ISAL_GZIP_NO_HDR_VER; // with the checksum, without the header
}

struct done {
	uint32_t used, made;
	int code, finished;
};

// The state keeps no pointer into Go's memory when this returns.
static struct done step(struct inflate_state *s, uint8_t *in, uint32_t nin, uint8_t *out, uint32_t nout)
{
	struct done d;

	s->next_in = in, s->avail_in = nin;
	s->next_out = out, s->avail_out = nout;
	d.code = inflate_step(s);
#ifdef __x86_64__
	// As long as there are values in the upper halves of the AVX registers, which it leaves there, each of the
	// thread's SSE instructions, of which Go's SHA-256 is made, takes several times as long.
	if (__builtin_cpu_supports("avx"))
		__asm__ volatile("vzeroupper");
#endif
	d.used = nin - s->avail_in, d.made = nout - s->avail_out;
	d.finished = s->block_state == ISAL_BLOCK_FINISH;
	s->next_in = NULL, s->avail_in = 0;
	s->next_out = NULL, s->avail_out = 0;
	return d;
}
*/
import "C"

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"unsafe"

	"github.com/klauspost/compress/gzip"
)

// Accelerated reports whether ISA-L is used.
var Accelerated = sync.OnceValue(func() bool { return C.load() != 0 })

// A fast reader inflates with ISA-L. It reads the members' headers itself: isal_inflate of ISA-L
// 2.30 forgets a header's fields when its input ends within the header.
type fast struct {
	in      *bufio.Reader
	state   *C.struct_inflate_state // nil: closed
	began   bool                    // in a member
	pending bool                    // the state may hold output
	first   bool                    // no member has begun
	err     error
}

func newFast(r io.Reader) (io.ReadCloser, error) {
	state := (*C.struct_inflate_state)(C.calloc(1, C.sizeof_struct_inflate_state))
	if state == nil {
		return nil, errors.New("no memory to inflate with")
	}
	return &fast{in: bufio.NewReaderSize(r, inputSize), state: state, first: true}, nil
}

// Close releases the reader's memory. Reading is an error from then on.
func (f *fast) Close() error {
	C.free(unsafe.Pointer(f.state))
	f.state, f.err = nil, errors.New("read of a closed gzip stream")
	return nil
}

// Read implements io.Reader.
func (f *fast) Read(p []byte) (n int, err error) {
	for n == 0 && f.err == nil && len(p) > 0 {
		n, f.err = f.step(p)
	}
	if n > 0 || len(p) == 0 {
		return n, nil
	}
	return 0, f.err
}

// step begins a member, or inflates some of it.
func (f *fast) step(p []byte) (int, error) {
	if !f.began {
		err := f.header()
		f.began, f.first = err == nil, false
		C.begin(f.state)
		return 0, err
	}
	if f.in.Buffered() == 0 && !f.pending {
		if _, err := f.in.Peek(1); err != nil {
			return 0, early(err)
		}
	}
	in, err := f.in.Peek(f.in.Buffered())
	if err != nil {
		return 0, err
	}
	p = p[:min(len(p), math.MaxInt32)]
	d := C.step(f.state, (*C.uint8_t)(unsafe.SliceData(in)), C.uint32_t(len(in)), (*C.uint8_t)(&p[0]), C.uint32_t(len(p)))
	if _, err := f.in.Discard(int(d.used)); err != nil {
		return 0, err
	}
	f.began = d.finished == 0
	f.pending = d.made > 0 // perhaps it has more
	switch {
	case d.code < 0:
		return int(d.made), fmt.Errorf("gzip stream is damaged: ISA-L's error %d", d.code)
	case f.began && d.used == 0 && d.made == 0 && len(in) > 0:
		return 0, errors.New("gzip stream is damaged: ISA-L made no progress")
	}
	return int(d.made), nil
}

// The flags of a member's header (RFC 1952, 2.3.1).
const (
	hasChecksum = 1 << 1
	hasExtra    = 1 << 2
	hasName     = 1 << 3
	hasComment  = 1 << 4
)

// header reads the header of a member. io.EOF means that there is no other. It does not verify
// the header's optional checksum: nothing in the header is used.
func (f *fast) header() error {
	if !f.first {
		if more, err := another(f.in); !more {
			return cmp.Or(err, io.EOF)
		}
	}
	fixed, err := f.in.Peek(10)
	if err != nil {
		return early(err)
	}
	if fixed[0] != 0x1f || fixed[1] != 0x8b || fixed[2] != 8 {
		return gzip.ErrHeader
	}
	flags, skip := fixed[3], 10
	if flags&hasExtra != 0 {
		fields, err := f.in.Peek(12)
		if err != nil {
			return early(err)
		}
		skip = 12 + int(binary.LittleEndian.Uint16(fields[10:]))
	}
	if _, err := f.in.Discard(skip); err != nil {
		return early(err)
	}
	for _, flag := range []byte{hasName, hasComment} {
		for flags&flag != 0 {
			b, err := f.in.ReadByte()
			if err != nil {
				return early(err)
			}
			if b == 0 {
				break
			}
		}
	}
	if flags&hasChecksum != 0 {
		if _, err := f.in.Discard(2); err != nil {
			return early(err)
		}
	}
	return nil
}
