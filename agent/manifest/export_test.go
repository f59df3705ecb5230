package manifest

import "reflect"

// Paths are the lines of the table for a kind.
func Paths(kind string) []string { return fields[kind].order }

// Checks are the places and types of the table of checks.
func Checks() map[string]bool {
	all := map[string]bool{}
	for place := range checks {
		all[place] = true
	}
	return all
}

// Types are the Go types of all kinds.
func Types() (list []reflect.Type) {
	for _, k := range kinds {
		list = append(list, k.typ)
	}
	return list
}

// SupportOf returns how a field is treated.
func SupportOf(kind, path string) string {
	for word, s := range supportWords {
		if s == supportOf(kind, path).support {
			return word
		}
	}
	return ""
}
