package manifest

// Paths are the lines of the table for a kind.
func Paths(kind string) []string { return fields[kind].order }

// SupportOf returns how a field is treated.
func SupportOf(kind, path string) string {
	for word, s := range supportWords {
		if s == supportOf(kind, path).support {
			return word
		}
	}
	return ""
}
