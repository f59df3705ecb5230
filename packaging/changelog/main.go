// Changelog writes CHANGELOG.md from docs/changes, where each change that users notice has a file of
// its own, so that two changes never conflict. docs/changes/README.md describes the files.
//
//	changelog DIRECTORY FILE
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// kinds are the headings of a release, in the order in which a reader needs them before an upgrade.
var kinds = []string{"Security", "Removed", "Changed", "Added", "Fixed"}

const head = `# Changelog

What users notice, newest release first. ` + "`make changelog`" + ` makes this file from [docs/changes](docs/changes/README.md).
`

func main() {
	err := errors.New("usage: changelog DIRECTORY FILE")
	if len(os.Args) == 3 {
		var text string
		if text, err = changelog(os.Args[1]); err == nil {
			err = os.WriteFile(os.Args[2], []byte(text), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "changelog:", err)
		os.Exit(1)
	}
}

func changelog(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var releases []release
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		r, err := readRelease(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		releases = append(releases, r)
	}
	slices.SortFunc(releases, func(a, b release) int { return cmp.Compare(b.date, a.date) })
	var text strings.Builder
	text.WriteString(head)
	for _, r := range releases {
		fmt.Fprintf(&text, "\n## %s\n", r.title)
		for _, kind := range kinds {
			if changes := r.changes[kind]; len(changes) > 0 {
				fmt.Fprintf(&text, "\n### %s\n\n%s", kind, strings.Join(changes, ""))
			}
		}
	}
	return text.String(), nil
}

// A release is a directory, unreleased or VERSION_DATE.
type release struct {
	title, date string
	changes     map[string][]string // as items of a list, by kind
}

func readRelease(dir string) (release, error) {
	r := release{title: "Unreleased", date: "~", changes: map[string][]string{}} // ~ is after all digits
	if name := filepath.Base(dir); name != "unreleased" {
		version, date, ok := strings.Cut(name, "_")
		if !ok {
			return r, fmt.Errorf("%s is neither unreleased nor VERSION_DATE", dir)
		}
		r.title, r.date = version+", "+date, date
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return r, err
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return r, err
		}
		kind, item, err := parse(string(data))
		if err != nil {
			return r, fmt.Errorf("%s: %w", path, err)
		}
		r.changes[kind] = append(r.changes[kind], item)
	}
	return r, nil
}

// parse returns the kind of a change, and the change as an item of a list.
func parse(text string) (kind, item string, err error) {
	title, body, _ := strings.Cut(text, "\n")
	kind, title, _ = strings.Cut(title, ": ")
	body = strings.TrimSpace(body)
	switch {
	case !slices.Contains(kinds, kind):
		return "", "", fmt.Errorf("the first line does not begin with one of %s, and a colon", strings.Join(kinds, ", "))
	case title == "" || strings.HasSuffix(title, "."):
		return "", "", errors.New("the first line has no title, or one with a full stop")
	case !strings.HasPrefix(text, kind+": "+title+"\n\n") || body == "":
		return "", "", errors.New("no blank line and explanation follow the title")
	}
	lines := strings.Split(body, "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = "  " + line
		}
	}
	return kind, "- **" + title + ".**\n" + strings.Join(lines, "\n") + "\n", nil
}
