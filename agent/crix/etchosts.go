package crix

import "os"

// writeHosts writes the file that is mounted at /etc/hosts. It is written in place, so
// that containers that have it mounted see a change.
func (d *Driver) writeHosts(uid, text string) error {
	path := d.hostsPath(uid)
	if old, err := os.ReadFile(path); err == nil && string(old) == text {
		return nil
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
