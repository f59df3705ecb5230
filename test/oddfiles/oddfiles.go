// Package oddfiles makes what a package, an installer that was cut short, or an operator may leave
// where a daemon looks for configuration files.
package oddfiles

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Each puts one kind of odd file after another at path, and calls check while each is there.
// Nothing is there afterwards. A program that opens the pipe waits for ever, and one that reads the
// whole huge file ends, for lack of memory.
func Each(t testing.TB, path string, check func(kind string)) {
	t.Helper()
	for _, odd := range []struct {
		kind string
		make func() error
	}{
		{"pipe", func() error { return unix.Mkfifo(path, 0o600) }},
		{"directory", func() error { return os.Mkdir(path, 0o700) }},
		{"dangling link", func() error { return os.Symlink("/nowhere/at/all", path) }},
		{"link to a directory", func() error { return os.Symlink("/", path) }},
		{"huge", func() error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(path, 1<<42)
		}},
		{"empty", func() error { return os.WriteFile(path, nil, 0o600) }},
		{"link to /dev/null", func() error { return os.Symlink("/dev/null", path) }}, // masks what a package installs: like empty
		{"garbage", func() error { return os.WriteFile(path, []byte("\xff{[<\x00"), 0o600) }},
	} {
		if err := odd.make(); err != nil {
			t.Fatal(err)
		}
		check(odd.kind)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
