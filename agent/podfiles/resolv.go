package podfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// ours is the time of a resolv.conf that no container has edited.
var ours = time.Unix(1, 0)

// ResolvFile is the path of the file that is mounted at a pod's /etc/resolv.conf.
func (s *Store) ResolvFile(uid string) string { return filepath.Join(s.Dir(uid), "resolv.conf") }

// WriteResolvConf writes that file in place, so that running containers see the change. A file that
// a container has edited (a VPN client does) stays, until RemoveResolvConf. With old alone, only a
// file that is there is written.
func (s *Store) WriteResolvConf(uid, text string, old bool) error {
	s.seen.Lock()
	defer s.seen.Unlock()
	path := s.ResolvFile(uid)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && old || err == nil && info.Size() > 0 && !info.ModTime().Equal(ours) {
		return nil
	}
	if err := overwrite(path, os.O_CREATE, text); err != nil {
		return err
	}
	return errors.Join(os.Chmod(path, 0o644), os.Chtimes(path, ours, ours))
}

// RemoveResolvConf removes that file of a pod of which nothing runs.
func (s *Store) RemoveResolvConf(uid string) error {
	if err := os.Remove(s.ResolvFile(uid)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
