package main

import (
	"os"
	"path/filepath"
)

// beside returns the path of a program or directory of crisp: beside crispd's executable, or in
// ../libexec/crisp from there; "" if it is in neither place.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	dir := filepath.Dir(self)
	for _, path := range []string{filepath.Join(dir, name), filepath.Join(dir, "..", "libexec", "crisp", name)} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}
