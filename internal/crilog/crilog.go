// Package crilog writes CRI's log format; package logread reads it.
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
	"math"
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
	dst, _ = appendUpTo(dst, t, stream, p, max, math.MaxInt64)
	return dst
}

// appendUpTo is Append of the records that have no more than room bytes together, but at least of the
// first. It returns how many bytes of p these are.
func appendUpTo(dst []byte, t time.Time, stream string, p []byte, max int, room int64) (_ []byte, n int) {
	var space [64]byte
	stamp := append(t.AppendFormat(space[:0], time.RFC3339Nano), ' ')
	stamp = append(append(stamp, stream...), ' ')
	for n < len(p) {
		rest := p[n:]
		end := bytes.IndexByte(rest[:min(len(rest), max+1)], '\n')
		content, tag, size := rest, byte('P'), len(rest)
		switch {
		case end >= 0:
			content, tag, size = rest[:end], 'F', end+1
		case len(rest) > max:
			content, size = rest[:max], max
		}
		if room -= int64(len(stamp) + len(content) + 3); room < 0 && n > 0 {
			break
		}
		dst = append(append(dst, stamp...), tag, ' ')
		dst = append(append(dst, content...), '\n')
		n += size
	}
	return dst, n
}
