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

// `go install …/cmd/crispd@VERSION` takes the module as a proxy serves it, and refuses one whose go.mod
// replaces another. It must load all packages; they are built elsewhere.
func TestGoInstall(t *testing.T) {
	const module, version = "github.com/crisp-cri/crisp", "v1.0.0"
	dir := t.TempDir()
	proxy, cache := filepath.Join(dir, "proxy", module, "@v"), filepath.Join(dir, "cache")
	if err := errors.Join(os.MkdirAll(proxy, 0o755), os.MkdirAll(cache, 0o755)); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{".info": `{"Version":"` + version + `"}`, ".mod": string(mod)} {
		if err := os.WriteFile(filepath.Join(proxy, version+name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := zipModule(filepath.Join(proxy, version+".zip"), filepath.Join("..", ".."), module+"@"+version+"/"); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	// The modules that crisp requires are those of the tree's build.
	real := strings.TrimSpace(string(out))
	for _, part := range []string{"", "github.com", "cache", "cache/download", "cache/download/github.com"} {
		if err := linkAll(filepath.Join(real, part), filepath.Join(cache, part)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"crispd", "crisp-executor", "crisp"} {
		cmd := exec.Command("go", "install", "-n", "-tags", "seccomp,containers_image_openpgp,nri_no_wasm,grpcnotrace", module+"/cmd/"+name+"@"+version)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOMODCACHE="+cache, "GOPROXY=file://"+filepath.Join(dir, "proxy"), "GOSUMDB=off", "GOFLAGS=-modcacherw", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("go install of %s: %v\n%.2000s", name, err, out)
		}
	}
}

// linkAll makes a directory with links to all that is in another one, but for what is there already, and
// without the module crisp.
func linkAll(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		_ = os.Remove(to) // a link, made for the directory above
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	for _, e := range entries {
		if e.Name() == "crisp-cri" || e.Name() == "lock" {
			continue
		}
		if lerr := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); lerr != nil && !errors.Is(lerr, fs.ErrExist) {
			return lerr
		}
	}
	return err
}

// zipModule makes the zip file of a module, without the tests below test/, which no program imports.
func zipModule(file, root, prefix string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	z := zip.NewWriter(f)
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		name, rerr := filepath.Rel(root, path)
		switch {
		case err != nil || rerr != nil:
			return errors.Join(err, rerr)
		case e.IsDir() && name != "." && (strings.HasPrefix(name, ".") || name == "test" || name == "bin"):
			return filepath.SkipDir
		case !e.Type().IsRegular():
			return nil
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
	})
	return errors.Join(err, z.Close())
}
