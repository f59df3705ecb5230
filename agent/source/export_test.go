package source

import "math"

// WithoutRescan returns d without its rescan, so that it sees only what inotify reports.
func (d *Dir) WithoutRescan() *Dir {
	d.every = math.MaxInt64
	return d
}
