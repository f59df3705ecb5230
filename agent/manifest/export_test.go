package manifest

import (
	"maps"
	"reflect"
	"slices"
)

// Paths returns the paths in the table of a kind, sorted.
func Paths(kind string) []string { return slices.Sorted(maps.Keys(fields[kind].rules)) }

// HasLine reports whether the table has a line for a field, or for one below it.
func HasLine(kind, path string) bool {
	_, ok := fields[kind].rules[path]
	return ok || fields[kind].inner[path]
}

// Checks are the places and types of the table of checks.
func Checks() map[string]bool {
	all := map[string]bool{}
	for place := range checks {
		all[place] = true
	}
	return all
}

// Types returns the Go types of all kinds.
func Types() (list []reflect.Type) {
	for _, k := range kinds {
		list = append(list, k.typ)
	}
	return list
}

// SupportOf returns how crisp treats a field.
func SupportOf(kind, path string) string {
	for word, s := range supportWords {
		if s == supportOf(kind, path).support {
			return word
		}
	}
	return ""
}
