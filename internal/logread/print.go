package logread

import (
	"bytes"
	"errors"
	"os"
	"time"

	"github.com/crisp-cri/crisp/internal/crilog"
)

// errLimit ends reading when Options.Limit is reached.
var errLimit = errors.New("the requested amount is written")

// streams are the names of the streams, by index.
var streams = [2]string{crilog.Stdout, crilog.Stderr}

// A printer prints records according to the options. It is buffered and must be flushed before
// every wait.
type printer struct {
	Options
	left int64   // bytes that may still be written
	open [2]bool // by stream: the last line is not complete
	buf  []byte
	to   int // the stream of buf
}

// wanted reports which streams are requested.
func (p *printer) wanted() [2]bool { return [2]bool{p.Stdout != nil, p.Stderr != nil} }

// tooOld reports whether everything in a complete file is older than Since. It allows for the
// kernel's file times, which may be some milliseconds behind the records.
func (p *printer) tooOld(f *os.File) (bool, error) {
	if p.Since.IsZero() {
		return false, nil
	}
	info, err := f.Stat()
	return err == nil && info.ModTime().Add(time.Second).Before(p.Since), err
}

func (p *printer) damaged(err error) {
	if p.Damaged != nil {
		p.Damaged(err)
	}
}

// print writes a record. stamp is its time as in the log.
func (p *printer) print(r crilog.Record, stamp []byte) error {
	i, to := 0, p.Stdout
	if r.Stream == crilog.Stderr {
		i, to = 1, p.Stderr
	}
	if to == nil || r.Time.Before(p.Since) {
		return nil
	}
	if i != p.to || len(p.buf) >= block {
		if err := p.flush(); err != nil {
			return err
		}
	}
	p.to = i
	from := len(p.buf)
	if p.Timestamps && !p.open[i] {
		p.buf = append(appendStamp(p.buf, stamp), ' ')
	}
	p.buf = append(p.buf, r.Content...)
	if !r.Partial {
		p.buf = append(p.buf, '\n')
	}
	p.open[i] = r.Partial
	if size := int64(len(p.buf) - from); size < p.left {
		p.left -= size
		return nil
	}
	p.buf = p.buf[:from+int(p.left)]
	p.left = 0
	if err := p.flush(); err != nil {
		return err
	}
	return errLimit
}

// flush writes the buffered output.
func (p *printer) flush() error {
	if len(p.buf) == 0 {
		return nil
	}
	to := p.Stdout
	if streams[p.to] == crilog.Stderr {
		to = p.Stderr
	}
	_, err := to.Write(p.buf)
	p.buf = p.buf[:0]
	return err
}

// appendStamp appends a time in RFC 3339 with nine digits of fraction, as the kubelet prints it.
// Runtimes omit trailing zeros.
func appendStamp(dst, stamp []byte) []byte {
	const seconds, digits = len("2006-01-02T15:04:05"), 9
	if len(stamp) < seconds {
		return append(dst, stamp...)
	}
	dst = append(append(dst, stamp[:seconds]...), '.')
	rest := stamp[seconds:]
	var fraction []byte
	if rest[0] == '.' {
		n := bytes.IndexFunc(rest[1:], func(r rune) bool { return r < '0' || r > '9' })
		fraction, rest = rest[1:1+n], rest[1+n:]
	}
	dst = append(dst, fraction[:min(len(fraction), digits)]...)
	for range digits - len(fraction) {
		dst = append(dst, '0')
	}
	return append(dst, rest...)
}
