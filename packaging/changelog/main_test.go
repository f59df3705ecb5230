package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Readers of CHANGELOG.md see each change, and each change says what it is.
func TestChangelogIsCurrent(t *testing.T) {
	text, err := changelog("../../docs/changes")
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != text {
		t.Error("CHANGELOG.md is not what docs/changes makes of it: run make changelog")
	}
}

func TestReleases(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"README.md":                  "not a change\n",
		"unreleased/b.md":            "Fixed: a fault\n\nIt did.\n\nTwice.\n",
		"unreleased/a.md":            "Removed: a verb\n\nUse kubectl.\n",
		"v0.9_2026-12-01/first.md":   "Added: all of it\n\nIt runs.\n",
		"v0.10_2027-01-01/second.md": "Security: a hole\n\nIt is shut.\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := changelog(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := head + `
## Unreleased

### Removed

- **a verb.**
  Use kubectl.

### Fixed

- **a fault.**
  It did.

  Twice.

## v0.10, 2027-01-01

### Security

- **a hole.**
  It is shut.

## v0.9, 2026-12-01

### Added

- **all of it.**
  It runs.
`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if err := os.Mkdir(filepath.Join(dir, "v1.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := changelog(dir); err == nil || !strings.Contains(err.Error(), "VERSION_DATE") {
		t.Errorf("a directory without a date: %v", err)
	}
}

func TestBadChanges(t *testing.T) {
	for _, text := range []string{
		"", "a fault\n\nIt did.\n", "Bug: a fault\n\nIt did.\n", "Fixed: a fault.\n\nIt did.\n", "Fixed:\n\nIt did.\n",
		"Fixed: a fault\n", "Fixed: a fault\nIt did.\n", "Fixed: a fault\n\n\n",
	} {
		if kind, item, err := parse(text); err == nil {
			t.Errorf("%q is %s %q", text, kind, item)
		}
	}
}
