package archtest

import (
	"archive/zip"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// `go install MODULE/cmd/crispd@VERSION` takes the module as a proxy serves it, and refuses a go.mod that
// means something else to the one who builds in the tree. Shown with a program that is built at once.
func TestGoInstall(t *testing.T) {
	const module, version, program = "github.com/crisp-cri/crisp", "v1.0.0", "packaging/changelog"
	dir := t.TempDir()
	proxy := filepath.Join(dir, "proxy", module, "@v")
	if err := os.MkdirAll(proxy, 0o755); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"list": version + "\n", version + ".info": `{"Version":"` + version + `"}`, version + ".mod": string(mod)} {
		if err := os.WriteFile(filepath.Join(proxy, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := zipModule(filepath.Join(proxy, version+".zip"), filepath.Join("..", ".."), module+"@"+version+"/", program); err != nil {
		t.Fatal(err)
	}
	known, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "install", module+"/"+program+"@"+version)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOBIN="+filepath.Join(dir, "bin"), "GOMODCACHE="+filepath.Join(dir, "cache"), "GOFLAGS=-modcacherw", "GOSUMDB=off", "GOWORK=off",
		"GOPROXY=file://"+filepath.Join(dir, "proxy")+",file://"+filepath.Join(strings.TrimSpace(string(known)), "cache", "download"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "bin", filepath.Base(program))); err != nil {
		t.Error(err)
	}
}

// zipModule makes the zip file of a module, with go.mod and one directory.
func zipModule(file, root, prefix, only string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	z := zip.NewWriter(f)
	add := func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		w, err := z.Create(prefix + filepath.ToSlash(name))
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	}
	return errors.Join(filepath.WalkDir(filepath.Join(root, "go.mod"), add), filepath.WalkDir(filepath.Join(root, only), add), z.Close())
}
