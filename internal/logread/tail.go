package logread

import (
	"bytes"
	"io"
	"os"

	"github.com/crisp-cri/crisp/internal/crilog"
)

// tailBlock is how many bytes are read at once, backwards. Usually only a few lines are wanted.
const tailBlock = 8 << 10

// headerSize is larger than the time, stream and tag of any record, in bytes.
const headerSize = 128

// A tail finds where the last lines begin, backwards through the files of a log.
type tail struct {
	lines  int64   // still to be found
	wanted [2]bool // by stream
	seen   [2]bool // by stream: a later record was seen
	buf    []byte
}

// find searches the first size bytes of a file and returns where the last lines begin. If found
// is false, all of the file is wanted and some lines of earlier ones. An incomplete record at
// the end does not count, and comes after the returned offset.
func (t *tail) find(f *os.File, size int64) (at int64, found bool, err error) {
	if t.buf == nil {
		t.buf = make([]byte, tailBlock+headerSize)
	}
	carry := 0 // bytes at the start of buf that belong to the next block
	after, whole := size, false
	for right := size; right > 0; {
		left := max(0, right-tailBlock)
		n := int(right - left)
		copy(t.buf[n:], t.buf[:carry])
		if _, err := f.ReadAt(t.buf[:n], left); err != nil && err != io.EOF {
			return 0, false, err
		} else if err == io.EOF {
			return 0, true, nil // truncated just now: nothing to skip
		}
		data := t.buf[:n+carry]
		if right == size {
			whole = data[n-1] == '\n'
		}
		for i := n; i >= 0; {
			// A record begins after each newline, and at the start of the file.
			i = bytes.LastIndexByte(data[:i], '\n')
			if i < 0 && left > 0 {
				break
			}
			start := left + int64(i) + 1
			if start < size {
				if whole && t.ends(data[i+1:]) {
					if t.lines--; t.lines < 0 {
						return after, true, nil
					}
				}
				after, whole = start, true
			}
		}
		carry = min(len(data), headerSize)
		right = left
	}
	return 0, false, nil
}

// ends reports whether the record at the start of data ends a wanted line.
func (t *tail) ends(data []byte) bool {
	head, _, _ := bytes.Cut(data[:min(len(data), headerSize)], []byte{'\n'})
	r, err := crilog.Parse(head)
	if err != nil {
		return false
	}
	for i, name := range streams {
		if r.Stream == name && t.wanted[i] {
			last := !r.Partial || !t.seen[i]
			t.seen[i] = true
			return last
		}
	}
	return false
}
