package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

var building sync.Mutex

// Build returns the path of a program of test/, a static one: CRISP_BIN has it where there is no Go, else it
// is built into dir, once.
func Build(dir, name string) (string, error) {
	if bin := os.Getenv("CRISP_BIN"); bin != "" {
		if path, err := filepath.EvalSymlinks(filepath.Join(bin, name)); err == nil {
			return path, nil
		}
	}
	building.Lock()
	defer building.Unlock()
	path := filepath.Join(dir, name)
	if Exists(path) {
		return path, nil
	}
	fresh, err := os.MkdirTemp(dir, name+"-") // other processes of the tests may build it, too
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", fresh+"/", "github.com/crisp-cri/crisp/test/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return path, os.Rename(filepath.Join(fresh, name), path)
}

// Link gives a program another name, which is a copy on another file system.
func Link(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	return errors.Join(err, os.WriteFile(to, data, 0o755))
}
