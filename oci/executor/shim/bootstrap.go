package shim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// A bootstrap is a shim's answer to start.
type bootstrap struct {
	version  int
	path     string // of a unix socket
	protocol string
}

// parseBootstrap reads an answer to start. There are three forms: the address alone (Task API
// version 2), JSON, and since containerd 2.3 a bootstrap.v1.BootstrapResult. That one begins with
// the tag of its first field, which no text begins with.
func parseBootstrap(out []byte) (b bootstrap, err error) {
	const first = 1<<3 | varintType
	text := bytes.TrimSpace(out)
	address := ""
	switch {
	case len(text) == 0:
		return b, fmt.Errorf("it is empty")
	case out[0] == first:
		address, err = b.decode(out)
	case text[0] == '{':
		var answer struct {
			Version           int
			Address, Protocol string
		}
		err = json.Unmarshal(text, &answer)
		b.version, address, b.protocol = answer.Version, answer.Address, answer.Protocol
	case !utf8.Valid(text):
		return b, fmt.Errorf("it is neither text nor a message: %q", cut(text))
	default:
		b.version, address, b.protocol = 2, string(text), "ttrpc"
	}
	if err != nil {
		return b, fmt.Errorf("%q: %w", cut(out), err)
	}
	if b.version != 2 && b.version != 3 {
		return b, fmt.Errorf("version %d of the Task API is not known, 2 and 3 are", b.version)
	}
	if protocol := strings.ToLower(b.protocol); protocol != "ttrpc" {
		return b, fmt.Errorf("the shim wants the protocol %q, crisp has ttrpc alone", cut([]byte(b.protocol)))
	}
	path, _ := strings.CutPrefix(address, "unix://")
	if !filepath.IsAbs(path) || strings.ContainsAny(path, "\x00\n") || len(path) > maxPath {
		return b, fmt.Errorf("the address %q is no path of a unix socket", cut([]byte(address)))
	}
	b.path = filepath.Clean(path)
	return b, nil
}

// maxPath is the longest path of a socket, in bytes (unix(7)).
const maxPath = 107

// decode reads a BootstrapResult and returns its address.
func (b *bootstrap) decode(data []byte) (address string, err error) {
	return address, decode(data, func(number int, v value) error {
		switch {
		case number == 1 && v.wire == varintType:
			b.version = int(int32(v.uint32()))
		case number == 2:
			return v.text(&address)
		case number == 3:
			return v.text(&b.protocol)
		}
		return nil
	})
}

// cut returns the beginning of what a program printed, for an error.
func cut(text []byte) []byte { return text[:min(len(text), 200)] }
