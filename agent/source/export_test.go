package source

// WithoutRescan returns d, which then learns of changes by inotify alone.
func (d *Dir) WithoutRescan() *Dir {
	d.never = true
	return d
}
