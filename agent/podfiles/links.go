package podfiles

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
)

// linkName is the maximum length of a link's name without ".log", in bytes: the kernel
// allows 255.
const linkName = 251

// logLink returns the path at which log shippers look for the log of a container.
func (s *Store) logLink(pod *v1.Pod, container, id string) string {
	name := fmt.Sprintf("%s_%s_%s-%s", pod.Name, pod.Namespace, container, id)
	return filepath.Join(s.o.LogLinks, name[:min(len(name), linkName)]+".log")
}

// LinkLog makes the link to the log of a container, if the log exists.
func (s *Store) LinkLog(pod *v1.Pod, container, id, log string) error {
	if s.o.LogLinks == "" {
		return nil
	}
	if _, err := os.Stat(log); err != nil {
		return nil // there is no log
	}
	if err := os.MkdirAll(s.o.LogLinks, 0o755); err != nil {
		return err
	}
	link := s.logLink(pod, container, id)
	if err := os.Symlink(log, link); err != nil && !os.IsExist(err) {
		return err
	}
	return nil
}

// UnlinkLog removes the link to the log of a container. Its pod need not be known.
func (s *Store) UnlinkLog(id string) error {
	if s.o.LogLinks == "" {
		return nil
	}
	links, err := filepath.Glob(filepath.Join(s.o.LogLinks, "*-"+id+".log"))
	if err != nil {
		return err
	}
	for _, link := range links {
		if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}
