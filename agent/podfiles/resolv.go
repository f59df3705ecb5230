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
	path := s.ResolvFile(uid)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && old || err == nil && info.Size() > 0 && !info.ModTime().Equal(ours) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text) // first, and cut after: resolvers read it meanwhile
	return errors.Join(err, f.Truncate(int64(len(text))), f.Chmod(0o644), f.Close(), os.Chtimes(path, ours, ours))
}

// RemoveResolvConf removes that file of a pod of which nothing runs.
func (s *Store) RemoveResolvConf(uid string) error {
	if err := os.Remove(s.ResolvFile(uid)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
