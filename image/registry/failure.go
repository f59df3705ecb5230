package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/docker/distribution/registry/api/errcode"
	"go.podman.io/image/v5/docker"
	"golang.org/x/sys/unix"
)

// A PullError is a failed pull whose reason the kubelet recognizes.
type PullError struct {
	Reason string // RegistryUnavailable or SignatureValidationFailed
	Err    error
}

// The reasons of a PullError, as k8s.io/cri-api/pkg/errors names them.
const (
	RegistryUnavailable       = "RegistryUnavailable"
	SignatureValidationFailed = "SignatureValidationFailed"
)

// Error starts with the reason and a colon, which is what the kubelet parses.
func (e *PullError) Error() string { return e.Reason + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *PullError) Unwrap() error { return e.Err }

// Failure gives err, the error of the pull of name, the kind that tells a caller what to do:
// fault.NotFound, Invalid, Unavailable, or a *PullError, which stays outermost, because its text
// must come first. It removes secrets from the text and bounds its length.
func Failure(ctx context.Context, name string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("pull %s: %w", name, ctx.Err())
	}
	if p, ok := errors.AsType[*PullError](err); ok {
		return &PullError{p.Reason, fmt.Errorf("pull %s: %w", name, public(p.Err))}
	}
	err = public(err)
	if fault.KindOf(err) != fault.Internal {
		return fmt.Errorf("pull %s: %w", name, err)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.Unavailable.Errorf("pull %s: %w", name, err)
	}
	switch code := statusOf(err); {
	case code == http.StatusNotFound || code == http.StatusGone:
		return fault.NotFound.Errorf("pull %s: %w", name, err)
	case isBusy(code):
		return &PullError{RegistryUnavailable, fmt.Errorf("pull %s: %w", name, err)}
	case code >= http.StatusBadRequest:
		return fault.Invalid.Errorf("pull %s: %w", name, err) // perhaps with another name or other credentials it works
	case code != 0:
		return fault.Unavailable.Errorf("pull %s: %w", name, err) // neither an error nor content
	}
	if isNetwork(err) || isOddToken(err) {
		return &PullError{RegistryUnavailable, fmt.Errorf("pull %s: %w", name, err)}
	}
	return fmt.Errorf("pull %s: %w", name, err)
}

// Together combines the errors for all full names that a short name may mean: it returns the
// first that leaves hope, if any. That one registry lacks the image says nothing while another
// does not answer.
func Together(errs []error) error {
	i := max(0, slices.IndexFunc(errs, func(err error) bool { return !errors.Is(err, fault.NotFound) }))
	if len(errs) == 1 {
		return errs[i]
	}
	var others []string
	for _, err := range slices.Delete(slices.Clone(errs), i, i+1) {
		others = append(others, "["+public(err).Error()+"]")
	}
	return withText(errs[i], "the name may mean others: "+strings.Join(others, " "))
}

// withText adds text to err. A *PullError stays the outermost.
func withText(err error, text string) error {
	if p, ok := errors.AsType[*PullError](err); ok {
		return &PullError{p.Reason, fmt.Errorf("%w (%s)", p.Err, text)}
	}
	return fmt.Errorf("%w (%s)", err, text)
}

// isBusy reports whether an HTTP status means that the server may later do what it refuses now.
func isBusy(code int) bool {
	return code == http.StatusRequestTimeout || code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
}

// statusOf returns the HTTP status behind an error of the library, or 0.
func statusOf(err error) int {
	if _, ok := errors.AsType[docker.ErrUnauthorizedForCredentials](err); ok {
		return http.StatusUnauthorized
	}
	if errors.Is(err, docker.ErrTooManyRequests) {
		return http.StatusTooManyRequests
	}
	if e, ok := errors.AsType[errcode.Error](err); ok && e.Code == errcode.ErrorCodeUnknown && strings.Contains(strings.ToLower(e.Message), "not found") {
		return http.StatusNotFound // Harbor and registry.redhat.io have no better code
	}
	var coder errcode.ErrorCoder
	if errors.As(err, &coder) {
		return coder.ErrorCode().Descriptor().HTTPStatusCode
	}
	return statusField(err)
}

// statusField returns the field StatusCode of the first error in the tree that has one, or 0:
// the library does not export the type of an error for an answer without JSON.
func statusField(err error) int {
	if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct {
		if code := v.FieldByName("StatusCode"); code.IsValid() && code.CanInt() {
			return int(code.Int())
		}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return statusField(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if code := statusField(err); code != 0 {
				return code
			}
		}
	}
	return 0
}

// isNetwork reports whether err came from the network. A check for net.Error would not do: every
// errno is one.
func isNetwork(err error) bool {
	if _, ok := errors.AsType[*url.Error](err); ok {
		return true
	}
	_, ok := errors.AsType[*net.OpError](err)
	return ok || errors.Is(err, io.EOF)
}

// maxPublicError bounds the text of an error, in bytes. It becomes an event, and a registry can
// send any text of any length.
const maxPublicError = 1024

// queries matches the queries of URLs: if a registry stores its blobs elsewhere, the signature
// in the query gives every reader access to them.
var queries = regexp.MustCompile(`(https?://[^\s"?]*)\?[^\s"]*`)

// A publicError is an error with a text that any user may see.
type publicError struct {
	text string
	err  error
}

func (e *publicError) Error() string { return e.text }

// Unwrap returns the original error.
func (e *publicError) Unwrap() error { return e.err }

// public shortens the text of err, and removes secrets from it.
func public(err error) error {
	text := queries.ReplaceAllString(err.Error(), "$1")
	if isOddToken(err) {
		text = "what was sent, perhaps for a token, is not the JSON that it should be"
	}
	if len(text) > maxPublicError {
		text = strings.ToValidUTF8(text[:maxPublicError], "") + "…"
	}
	return &publicError{text, err}
}

// isOddToken reports whether err quotes the beginning of a response to a token request, as the
// library does. The registry names the host, which may be one that answers only the node: users
// must not see its response.
func isOddToken(err error) bool {
	if fault.KindOf(err) != fault.Internal {
		return false // ours
	}
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, kind := errors.AsType[*json.UnmarshalTypeError](err)
	_, when := errors.AsType[*time.ParseError](err)
	return syntax || kind || when
}

// Interrupted reports whether the layers that a pull had fetched before err are likely to be
// useful: if the network, the registry or the caller ended it. A full disk needs the space, and
// a bad image stays bad.
func Interrupted(err error) bool {
	return isAway(err) || isBusy(statusOf(err)) || errors.Is(err, context.Canceled) || errors.Is(err, fault.Unavailable)
}
