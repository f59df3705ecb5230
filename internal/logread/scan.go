package logread

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/crisp-cri/crisp/internal/crilog"
)

// block is how many bytes are read at once. A longer record is printed in pieces.
const block = 64 << 10

// A scan reads the records of one file.
type scan struct {
	f  *os.File
	at int64 // offset at which the next record begins, or the current one continues
	// inside is set within a record that is longer than a block and begins with head; lost, if
	// that record is damaged and skipped.
	inside, lost bool
	head         crilog.Record
	parser       Parser
	stamp        []byte
	buf          []byte
}

// read prints all complete records and reports whether there were any. If stop is not negative
// it begins no record at or after that offset. An incomplete record is read again later: a
// writer whose disk is full removes what it has written of it.
func (s *scan) read(ctx context.Context, p *printer, stop int64) (grew bool, err error) {
	if s.buf == nil {
		s.buf = make([]byte, block)
	}
	for stop < 0 || s.inside || s.at < stop {
		if err := ctx.Err(); err != nil {
			return grew, err
		}
		n, err := s.f.ReadAt(s.buf, s.at)
		if err != nil && err != io.EOF {
			return grew, err
		}
		end := err == io.EOF
		used, err := s.lines(p, s.buf[:n], stop)
		if err == nil && used == 0 && n == len(s.buf) {
			used, err = n, s.begin(p, s.buf)
		}
		s.at += int64(used)
		grew = grew || used > 0
		if err != nil {
			return grew, err
		}
		if end && n == 0 {
			cut, err := s.truncated()
			if !cut || err != nil {
				return grew, err
			}
		} else if end {
			return grew, nil
		}
	}
	return grew, nil
}

// lines prints the complete records in data and returns how many bytes they take.
func (s *scan) lines(p *printer, data []byte, stop int64) (used int, err error) {
	for err == nil && (stop < 0 || s.inside || s.at+int64(used) < stop) {
		i := bytes.IndexByte(data[used:], '\n')
		if i < 0 {
			break
		}
		err = s.record(p, data[used:used+i])
		used += i + 1
	}
	return used, err
}

// record prints a record, or the rest of one.
func (s *scan) record(p *printer, line []byte) error {
	if !s.inside {
		r, err := s.parser.Parse(line)
		if err != nil {
			p.damaged(err)
			return nil
		}
		return p.print(r, stampOf(line))
	}
	s.inside = false
	if s.lost {
		return nil
	}
	r := s.head
	r.Content = line
	return p.print(r, s.stamp)
}

// begin prints a piece of a record that continues after it.
func (s *scan) begin(p *printer, piece []byte) error {
	r := s.head
	r.Content = piece
	if !s.inside {
		s.inside, s.lost = true, false
		var err error
		if r, err = s.parser.Parse(piece); err != nil {
			s.lost = true
			p.damaged(err)
			return nil
		}
		s.head = r
		s.stamp = bytes.Clone(stampOf(piece))
	}
	if s.lost {
		return nil
	}
	r.Partial = true
	return p.print(r, s.stamp)
}

// truncated reports whether the file was truncated, and if so restarts at its beginning.
func (s *scan) truncated() (bool, error) {
	info, err := s.f.Stat()
	if err != nil || info.Size() >= s.at {
		return false, err
	}
	s.at, s.inside = 0, false
	return true, nil
}

// finish prints the unterminated last record of a complete file.
func (s *scan) finish(p *printer) error {
	n, err := s.f.ReadAt(s.buf, s.at)
	if err != nil && err != io.EOF {
		return err
	}
	s.at += int64(n)
	if n == 0 {
		return nil
	}
	return s.begin(p, s.buf[:n])
}

// all prints a complete file.
func (s *scan) all(ctx context.Context, p *printer) error {
	if _, err := s.read(ctx, p, -1); err != nil {
		return err
	}
	return s.finish(p)
}

// stampOf returns the time of a record as written in the log.
func stampOf(line []byte) []byte {
	stamp, _, _ := bytes.Cut(line, []byte{' '})
	return stamp
}

// Parse reads one line of a log, with or without its newline. Content is part of
// line.
func Parse(line []byte) (crilog.Record, error) {
	var p Parser
	return p.Parse(line)
}

// A Parser parses many lines: most have the same second as the line before. The zero value is
// ready for use.
type Parser struct {
	second [len("2006-01-02T15:04:05")]byte // that of at, if at is not zero
	at     time.Time                        // UTC
}

// time reads a time of RFC 3339.
func (p *Parser) time(stamp []byte) (t time.Time, err error) {
	n := len(p.second)
	if len(stamp) > n+1 && len(stamp) <= n+len(".123456789Z") && stamp[n] == '.' && stamp[len(stamp)-1] == 'Z' &&
		!p.at.IsZero() && string(stamp[:n]) == string(p.second[:]) {
		nanos, unit := time.Duration(0), time.Second
		for _, b := range stamp[n+1 : len(stamp)-1] {
			if b < '0' || b > '9' {
				return t, t.UnmarshalText(stamp) // for its error
			}
			unit /= 10
			nanos += time.Duration(b-'0') * unit
		}
		if unit < time.Second {
			return p.at.Add(nanos), nil
		}
	}
	if err = t.UnmarshalText(stamp); err == nil && stamp[len(stamp)-1] == 'Z' {
		copy(p.second[:], stamp)
		p.at = t.Truncate(time.Second)
	}
	return t, err
}

// Parse is the function Parse, but faster for many lines.
func (p *Parser) Parse(line []byte) (crilog.Record, error) {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return crilog.Record{}, fmt.Errorf("log record %.40q has no stream", line)
	}
	t, err := p.time(stamp)
	if err != nil {
		return crilog.Record{}, fmt.Errorf("log record %.40q: %w", line, err)
	}
	name, rest, ok := bytes.Cut(rest, []byte{' '})
	stream := crilog.Stdout
	if string(name) == crilog.Stderr {
		stream = crilog.Stderr
	}
	if !ok || string(name) != stream {
		return crilog.Record{}, fmt.Errorf("log record %.40q has stream %q", line, name)
	}
	// Tags are a list with colons; only the first is defined.
	tags, content, ok := bytes.Cut(rest, []byte{' '})
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	if !ok || string(tag) != "F" && string(tag) != "P" {
		return crilog.Record{}, fmt.Errorf("log record %.40q has tag %q", line, tags)
	}
	return crilog.Record{Time: t, Stream: stream, Partial: tag[0] == 'P', Content: content}, nil
}

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
	r, err := Parse(head)
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
