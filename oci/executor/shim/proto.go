package shim

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
	"unicode/utf8"
)

// The wire types of protocol buffers that proto3 has.
const (
	varintType  = 0
	fixed64Type = 1
	bytesType   = 2
	fixed32Type = 5
)

// A message is one in the encoding of protocol buffers. Its methods append a field, or nothing if
// the value is the default.
type message []byte

func (m *message) tag(field, wire int) { m.varint(uint64(field)<<3 | uint64(wire)) }

func (m *message) varint(v uint64) { *m = binary.AppendUvarint(*m, v) }

func (m *message) uint(field int, v uint64) {
	if v != 0 {
		m.tag(field, varintType)
		m.varint(v)
	}
}

func (m *message) bool(field int, v bool) {
	if v {
		m.uint(field, 1)
	}
}

func (m *message) string(field int, s string) {
	if s != "" {
		m.nested(field, message(s))
	}
}

// nested appends a message even if it is empty: its presence means something.
func (m *message) nested(field int, n message) {
	m.tag(field, bytesType)
	m.varint(uint64(len(n)))
	*m = append(*m, n...)
}

func (m *message) any(field int, a *Any) {
	if a != nil {
		m.nested(field, a.encode())
	}
}

// entries appends a map, in the order of its keys.
func (m *message) entries(field int, values map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		var entry message
		entry.string(1, key)
		entry.string(2, values[key])
		m.nested(field, entry)
	}
}

// A value is the value of a field: a number, or the bytes of a string or a message.
type value struct {
	wire   int
	number uint64
	bytes  []byte
}

// uint32 returns a number as proto3 reads it, without the upper half.
func (v value) uint32() uint32 { return uint32(v.number) }

// decode calls field for each field of a message that has the wire type of a number or of bytes. It
// keeps no reference to data; the caller of field does.
func decode(data []byte, field func(number int, v value) error) error {
	for len(data) > 0 {
		number, v, n, err := next(data)
		if err != nil {
			return err
		}
		data = data[n:]
		if v.wire != varintType && v.wire != bytesType {
			continue // no field that we read
		}
		if err := field(number, v); err != nil {
			return err
		}
	}
	return nil
}

// next returns the first field of a message and its length.
func next(data []byte) (number int, v value, length int, err error) {
	tag, n := binary.Uvarint(data)
	if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
		return 0, v, 0, fmt.Errorf("invalid field")
	}
	number, v.wire = int(tag>>3), int(tag&7)
	rest := data[n:]
	size := 0
	switch v.wire {
	case varintType:
		v.number, size = binary.Uvarint(rest)
		if size <= 0 {
			return 0, v, 0, fmt.Errorf("field %d is no number", number)
		}
	case fixed64Type:
		size = 8
	case fixed32Type:
		size = 4
	case bytesType:
		long, k := binary.Uvarint(rest)
		if k <= 0 || long > uint64(len(rest)-k) {
			return 0, v, 0, fmt.Errorf("field %d is longer than its message", number)
		}
		v.bytes, size = rest[k:k+int(long)], k+int(long)
	default:
		return 0, v, 0, fmt.Errorf("field %d has type %d", number, v.wire)
	}
	if size > len(rest) {
		return 0, v, 0, fmt.Errorf("field %d is longer than its message", number)
	}
	return number, v, n + size, nil
}

// text sets s to a string field.
func (v value) text(s *string) error {
	if v.wire != bytesType {
		return nil // of a later version
	}
	if !utf8.Valid(v.bytes) {
		return fmt.Errorf("a string is not UTF-8")
	}
	*s = string(v.bytes)
	return nil
}

// decodeTime returns a google.protobuf.Timestamp, and the zero time for one that is out of its range.
func decodeTime(data []byte) (time.Time, error) {
	var seconds, nanos int64
	err := decode(data, func(number int, v value) error {
		switch {
		case v.wire != varintType:
		case number == 1:
			seconds = int64(v.number)
		case number == 2:
			nanos = int64(int32(v.number))
		}
		return nil
	})
	const first, last = -62135596800, 253402300799 // 0001-01-01 and 9999-12-31
	if err != nil || seconds < first || seconds > last || nanos < 0 || nanos > int64(time.Second)-1 {
		return time.Time{}, err
	}
	return time.Unix(seconds, nanos).UTC(), nil
}

// pid returns a PID, and 0 for a number that is none.
func (v value) pid() int {
	if v.wire != varintType || v.uint32() > math.MaxInt32 {
		return 0
	}
	return int(v.uint32())
}
