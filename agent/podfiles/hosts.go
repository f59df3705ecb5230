package podfiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// The lines around the names in /etc/hosts that change while a pod runs. What its containers write
// before or after them stays.
const (
	namesBegin = "# Names on this node.\n"
	namesEnd   = "# End of the names on this node.\n"
)

// maxHosts bounds what is read of a pod's /etc/hosts, to which its containers may write.
const maxHosts = 1 << 20

var errFilled = fmt.Errorf("a hosts file has more than %d bytes", maxHosts)

// Names are the names that change while pods run.
type Names interface {
	// In returns them as lines of /etc/hosts of a pod in the namespace. hosts is the rest of the file.
	In(namespace, hosts string) string
}

// HostsFile is the path of the file that is mounted at a pod's /etc/hosts.
func (s *Store) HostsFile(uid string) string { return filepath.Join(s.Dir(uid), "etc-hosts") }

// WriteHosts writes the file that is mounted at a pod's /etc/hosts: text and the current names.
func (s *Store) WriteHosts(pod *v1.Pod, text string) error {
	s.seen.Lock()
	defer s.seen.Unlock()
	path := s.HostsFile(string(pod.UID))
	old, err := readHosts(path)
	if err != nil {
		old = "" // there is none, or one that a container has filled
	}
	return writeHosts(path, os.O_CREATE, old, s.withNames(pod, text, ""))
}

// Rename gives new names to the pods, also to those whose file is made later.
func (s *Store) Rename(names Names) error {
	s.seen.Lock()
	defer s.seen.Unlock()
	s.names = names
	var problems []error
	for _, pod := range s.Accepted() {
		path := s.HostsFile(string(pod.UID))
		old, err := readHosts(path)
		if err == nil {
			before, rest, _ := strings.Cut(old, namesBegin)
			_, after, _ := strings.Cut(rest, namesEnd)
			err = writeHosts(path, 0, old, s.withNames(pod, before, after))
		}
		// Not made yet, or its pod is gone; or filled by a container, which has it as it wants it.
		if !errors.Is(err, fs.ErrNotExist) && err != errFilled {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

func (s *Store) withNames(pod *v1.Pod, before, after string) string {
	if s.names == nil {
		return before + after
	}
	return before + namesBegin + s.names.In(pod.Namespace, before+after) + namesEnd + after
}

func readHosts(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxHosts+1))
	if err == nil && len(data) > maxHosts {
		err = errFilled
	}
	return string(data), err
}

func writeHosts(path string, flag int, old, text string) error {
	if old == text && old != "" {
		return nil
	}
	return overwrite(path, flag, text)
}

// overwrite changes a file in place, so that running containers see the change. One that reads
// meanwhile never sees an empty file.
func overwrite(path string, flag int, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|flag, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	return errors.Join(err, f.Close())
}
