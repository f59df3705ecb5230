package source

// WithoutRescan returns d without its rescan, so that it sees only what inotify reports.
func (d *Dir) WithoutRescan() *Dir {
	d.never = true
	return d
}
