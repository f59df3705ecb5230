package shim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// A frame of ttrpc is a header of ten bytes (the length of the data, the stream's number, both big
// endian, the type and flags) and its data. A call is a stream of two frames.
type frame struct {
	stream uint32
	kind   byte
	data   []byte
}

// Types of frames. Data is of streaming calls, which the Task API does not have.
const (
	requestFrame  = 1
	responseFrame = 2
)

const (
	headerSize = 10
	maxData    = 4 << 20 // bytes of data in a frame, ttrpc's own limit
)

// bytes returns the frame as it is sent.
func (f frame) bytes() []byte {
	out := make([]byte, headerSize, headerSize+len(f.data))
	binary.BigEndian.PutUint32(out, uint32(len(f.data)))
	binary.BigEndian.PutUint32(out[4:], f.stream)
	out[8] = f.kind
	return append(out, f.data...)
}

// readFrame reads a frame. It allocates what arrives, not what the header announces.
func readFrame(r io.Reader, limit uint32) (f frame, err error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return f, err
	}
	size := binary.BigEndian.Uint32(header[:])
	if size > limit {
		return f, fmt.Errorf("a frame of %d bytes, at most %d", size, limit)
	}
	f.stream, f.kind = binary.BigEndian.Uint32(header[4:]), header[8]
	var data bytes.Buffer
	if _, err := io.CopyN(&data, r, int64(size)); err != nil {
		return f, io.ErrUnexpectedEOF
	}
	f.data = data.Bytes()
	return f, nil
}

// A request is that of a call: ttrpc.Request.
type request struct {
	service, method string
	payload         []byte
	timeout         int64             // nanoseconds; 0 = none
	metadata        map[string]string // only sent
}

func (r request) encode() (m message) {
	m.string(1, r.service)
	m.string(2, r.method)
	if len(r.payload) > 0 {
		m.nested(3, r.payload)
	}
	m.uint(4, uint64(r.timeout))
	m.entries(5, r.metadata)
	return m
}

func decodeRequest(data []byte) (r request, err error) {
	return r, decode(data, func(number int, v value) error {
		switch {
		case number == 1:
			return v.text(&r.service)
		case number == 2:
			return v.text(&r.method)
		case number == 3 && v.wire == bytesType:
			r.payload = v.bytes
		}
		return nil
	})
}

// A response is that of a call: ttrpc.Response with its google.rpc.Status.
type response struct {
	code    code
	text    string
	payload []byte
}

func (r response) encode() (m message) {
	if r.code != codeOK {
		var status message
		status.uint(1, uint64(r.code))
		status.string(2, r.text)
		m.nested(1, status)
	}
	if len(r.payload) > 0 {
		m.nested(2, r.payload)
	}
	return m
}

func decodeResponse(data []byte) (r response, err error) {
	return r, decode(data, func(number int, v value) error {
		switch {
		case number == 1 && v.wire == bytesType:
			return decode(v.bytes, func(number int, v value) error {
				switch {
				case number == 1 && v.wire == varintType:
					r.code = code(v.uint32())
				case number == 2:
					return v.text(&r.text)
				}
				return nil
			})
		case number == 2 && v.wire == bytesType:
			r.payload = v.bytes
		}
		return nil
	})
}
