package podfiles

import (
	"os"
	"path/filepath"
)

// WriteHosts writes the file that is mounted at a pod's /etc/hosts, in place, so that running
// containers see the change.
func (s *Store) WriteHosts(uid, text string) error {
	path := s.HostsFile(uid)
	if old, err := os.ReadFile(path); err == nil && string(old) == text {
		return nil
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// HostsFile is the path of the file that is mounted at a pod's /etc/hosts.
func (s *Store) HostsFile(uid string) string { return filepath.Join(s.Dir(uid), "etc-hosts") }
