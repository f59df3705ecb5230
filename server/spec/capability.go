package spec

// DefaultCapabilities is what a container gets unasked.
func DefaultCapabilities() []string {
	return defaultCapabilities()
}
