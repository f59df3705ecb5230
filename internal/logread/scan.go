package logread

import (
	"bytes"
	"context"
	"io"
	"os"

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
	parser       crilog.Parser
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
