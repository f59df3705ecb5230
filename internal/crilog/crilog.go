// Package crilog reads and writes CRI's log format.
//
// A log is a file of records, one per line (kubernetes/design-proposals, "CRI log"; the
// kubelet's reader is pkg/kubelet/kuberuntime/logs):
//
//	2016-10-06T00:17:09.669794202Z stdout F the end of a line
//	<RFC3339Nano>                  <stream> <tag> <content>
//
// The tag is F if the content ends a line of the container's output and P if the line continues
// in the next record of the same stream. A final line that the container never ended stays P.
//
// Nothing is buffered: output that does not end a line is recorded as P as soon as there is
// nothing more to read. So a process that dies between two writes loses nothing, and a prompt is
// visible.
package crilog

import (
	"bytes"
	"fmt"
	"time"
)

// MaxLine is the number of bytes after which a line is split by default.
const MaxLine = 16384

// Stream names. A terminal has only stdout.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// A Record is one line of a log.
type Record struct {
	Time    time.Time
	Stream  string
	Partial bool   // the line continues in the stream's next record
	Content []byte // without the newline
}

// Append appends to dst the records of p, as output of stream at time t. No record has more than
// max bytes of content. Concatenating the contents, with a newline after each that is not
// partial, yields p again.
func Append(dst []byte, t time.Time, stream string, p []byte, max int) []byte {
	var room [64]byte
	stamp := append(t.AppendFormat(room[:0], time.RFC3339Nano), ' ')
	stamp = append(append(stamp, stream...), ' ')
	for len(p) > 0 {
		end := bytes.IndexByte(p[:min(len(p), max+1)], '\n')
		content, tag := p, byte('P')
		switch {
		case end >= 0:
			content, tag = p[:end], 'F'
			p = p[end+1:]
		case len(p) > max:
			content = p[:max]
			p = p[max:]
		default:
			p = nil
		}
		dst = append(append(dst, stamp...), tag, ' ')
		dst = append(append(dst, content...), '\n')
	}
	return dst
}

// Parse reads one line of a log, with or without its newline. Content is part of
// line.
func Parse(line []byte) (Record, error) {
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
func (p *Parser) Parse(line []byte) (Record, error) {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return Record{}, fmt.Errorf("log record %.40q has no stream", line)
	}
	t, err := p.time(stamp)
	if err != nil {
		return Record{}, fmt.Errorf("log record %.40q: %w", line, err)
	}
	name, rest, ok := bytes.Cut(rest, []byte{' '})
	stream := Stdout
	if string(name) == Stderr {
		stream = Stderr
	}
	if !ok || string(name) != stream {
		return Record{}, fmt.Errorf("log record %.40q has stream %q", line, name)
	}
	// Tags are a list with colons; only the first is defined.
	tags, content, ok := bytes.Cut(rest, []byte{' '})
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	if !ok || string(tag) != "F" && string(tag) != "P" {
		return Record{}, fmt.Errorf("log record %.40q has tag %q", line, tags)
	}
	return Record{Time: t, Stream: stream, Partial: tag[0] == 'P', Content: content}, nil
}
