package shim

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A code is a status code of gRPC.
type code uint32

const (
	codeOK                 code = 0
	codeInvalidArgument    code = 3
	codeDeadlineExceeded   code = 4
	codeNotFound           code = 5
	codeAlreadyExists      code = 6
	codeFailedPrecondition code = 9
	codeAborted            code = 10
	codeUnimplemented      code = 12
	codeUnavailable        code = 14
)

// kinds are the kinds of errors that shims send. All others are Internal.
var kinds = map[code]fault.Kind{
	codeInvalidArgument:    fault.Invalid,
	codeDeadlineExceeded:   fault.Unavailable,
	codeNotFound:           fault.NotFound,
	codeAlreadyExists:      fault.Exists,
	codeFailedPrecondition: fault.WrongState,
	codeAborted:            fault.WrongState,
	codeUnimplemented:      fault.Invalid,
	codeUnavailable:        fault.Unavailable,
}

// causes are what errors.Is finds in some errors besides their kind.
var causes = map[code]error{
	codeDeadlineExceeded: context.DeadlineExceeded,
	codeUnimplemented:    errors.ErrUnsupported,
}

// maxText bounds the text of a shim's error, in bytes: it becomes a message of CRI.
const maxText = 4 << 10

// err returns the error of a response.
func (r response) err() error {
	if r.code == codeOK {
		return nil
	}
	text := shorten(r.text)
	if cause := causes[r.code]; cause != nil {
		return kinds[r.code].Errorf("%s (%w)", text, cause)
	}
	return kinds[r.code].Errorf("%s", text)
}

// shorten returns a text of a shim in one line, without its middle if it is long.
func shorten(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) > maxText {
		text = fmt.Sprintf("%s … %s", text[:maxText/2], text[len(text)-maxText/2:])
	}
	return strings.ToValidUTF8(text, "")
}
