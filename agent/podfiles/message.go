package podfiles

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/logread"
	"github.com/crisp-cri/crisp/internal/regular"
)

// The limits of a termination message.
const (
	maxMessage  = 4096 // bytes of the file
	maxLogTail  = 2048 // bytes of the log
	maxLogLines = 80
)

// NewMessageFile returns the path of a new file to mount at terminationMessagePath. Each
// run of a container gets its own.
func (s *Store) NewMessageFile(uid, container string) string {
	return filepath.Join(s.Dir(uid), "containers", container, fmt.Sprintf("%08x", rand.Uint32()))
}

// MakeMessageFile makes a file at such a path that every user of the container can write.
func MakeMessageFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return err
	}
	return os.Chmod(path, 0o666) // despite the umask
}

// Message returns the end of a container's termination message file, up to 4096 bytes.
func Message(path string) (string, error) {
	f, err := regular.Open(path) // a container may have put anything there
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-maxMessage), maxMessage))
	return string(data), err
}

// LogTail returns the end of a container's log, up to 80 lines and 2048 bytes, as a substitute
// for a missing message; or a sentence that says why the log cannot be read.
func LogTail(ctx context.Context, path string) string {
	lines := int64(maxLogLines)
	var text end
	l, err := logread.Open(path)
	if err == nil {
		defer l.Close()
		err = l.Copy(ctx, logread.Options{Tail: &lines, Stdout: &text, Stderr: &text})
	}
	if err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err)
	}
	return string(text)
}

// end keeps the last maxLogTail bytes that are written to it.
type end []byte

func (e *end) Write(p []byte) (int, error) {
	all := append(*e, p...)
	*e = append(all[:0], all[max(0, len(all)-maxLogTail):]...)
	return len(p), nil
}
