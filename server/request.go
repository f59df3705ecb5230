package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
)

// checkRequest refuses requests that are wrong in any RPC: those that do not name their object, and
// text with a NUL byte, at which the kernel would cut off a path, an argument or a variable. It
// passes messages with fields that this CRI does not have to unknown.
func checkRequest(req any, unknown func(protoreflect.Message)) error {
	if r, ok := req.(interface{ GetPodSandboxId() string }); ok && r.GetPodSandboxId() == "" {
		return fault.Invalid.Errorf("the request names no sandbox: pod_sandbox_id is empty")
	}
	if r, ok := req.(interface{ GetContainerId() string }); ok && r.GetContainerId() == "" {
		return fault.Invalid.Errorf("the request names no container: container_id is empty")
	}
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	if field := withNUL(m.ProtoReflect(), unknown); field != "" {
		return fault.Invalid.Errorf("%s holds a NUL byte", field)
	}
	return nil
}

// withNUL returns the path of a text field with a NUL byte, such as
// config.envs[2].value, or "" without such a field.
func withNUL(m protoreflect.Message, unknown func(protoreflect.Message)) (path string) {
	if len(m.GetUnknown()) > 0 {
		unknown(m)
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(field.Name())
		switch {
		case field.IsMap():
			v.Map().Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
				if field.MapKey().Kind() == protoreflect.StringKind && strings.Contains(key.String(), "\x00") {
					path = fmt.Sprintf("%s[%q]", name, key.String())
				} else if in, ok := valueWithNUL(field.MapValue(), v, unknown); ok {
					path = fmt.Sprintf("%s[%q]%s", name, key.String(), in)
				}
				return path == ""
			})
		case field.IsList():
			for i := range v.List().Len() {
				if in, ok := valueWithNUL(field, v.List().Get(i), unknown); ok {
					path = fmt.Sprintf("%s[%d]%s", name, i, in)
					break
				}
			}
		default:
			if in, ok := valueWithNUL(field, v, unknown); ok {
				path = name + in
			}
		}
		return path == ""
	})
	return path
}

// valueWithNUL searches one value of a field; in is the path below that field.
func valueWithNUL(field protoreflect.FieldDescriptor, v protoreflect.Value, unknown func(protoreflect.Message)) (in string, ok bool) {
	switch field.Kind() {
	case protoreflect.StringKind:
		return "", strings.Contains(v.String(), "\x00")
	case protoreflect.BytesKind: // the value of an environment variable
		return "", bytes.Contains(v.Bytes(), []byte{0})
	case protoreflect.MessageKind:
		if in = withNUL(v.Message(), unknown); in != "" {
			return "." + in, true
		}
	}
	return "", false
}

// maxUnknown bounds how many fields are reported.
const maxUnknown = 100

// unknownFields are the fields of requests that a later CRI has. Each is logged once: its client
// has not asked what this server supports, and the field has no effect.
type unknownFields struct {
	mu   sync.Mutex
	seen map[string]bool // guarded by mu; by message and number
}

// report logs the unknown fields of m itself.
func (u *unknownFields) report(ctx context.Context, log *slog.Logger, m protoreflect.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.seen == nil {
		u.seen = make(map[string]bool)
	}
	name := m.Descriptor().FullName()
	for raw := m.GetUnknown(); len(raw) > 0 && len(u.seen) < maxUnknown; {
		number, _, n := protowire.ConsumeField(raw)
		if n < 0 {
			return
		}
		raw = raw[n:]
		if key := fmt.Sprint(name, number); !u.seen[key] {
			u.seen[key] = true
			log.WarnContext(ctx, "unknown field of a request was ignored", "message", string(name), "field", int(number))
		}
	}
}

// maxName is the longest name allowed, in bytes; Kubernetes' names have at most 253. One message
// of a list holds many of them.
const maxName = 1024

// checkNames refuses names that are too long to be intended. names is keyed by field.
func checkNames(names map[string]string) error {
	for field, name := range names {
		if len(name) > maxName {
			return fault.Invalid.Errorf("%s has %d bytes, more than %d", field, len(name), maxName)
		}
	}
	return nil
}

// checkPath refuses paths that no kernel accepts: path_resolution(7), PATH_MAX and NAME_MAX of
// limits.h(0p).
func checkPath(field, path string) error {
	if len(path) >= unix.PathMax {
		return fault.Invalid.Errorf("%s has %d bytes, more than the %d of a path", field, len(path), unix.PathMax-1)
	}
	for part := range strings.SplitSeq(path, "/") {
		if len(part) > 255 {
			return fault.Invalid.Errorf("%s %.100q…: a name in it has %d bytes, more than 255", field, path, len(part))
		}
	}
	return nil
}

// makeDir creates a directory that the client has named, and its parents. An obstacle, such as a
// file in its place, is the client's to remove and makes the request invalid; a full or broken
// disk is not the client's fault.
func makeDir(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	if err == nil || atomicfile.IsFull(err) || errors.Is(err, unix.EIO) {
		return err
	}
	return fault.Invalid.Errorf("%w", err)
}
