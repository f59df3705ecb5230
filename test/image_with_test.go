package test

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/rogpeppe/go-internal/testscript"
)

// imageWith returns testbin's image, changed by the options of `registry push`.
func imageWith(ts *testscript.TestScript, testbin string, options []string) (v1.Image, error) {
	image, err := testbinImage(testbin)
	for _, o := range options {
		if err != nil {
			return nil, err
		}
		switch key, value, _ := strings.Cut(o, "="); key {
		case "files":
			image, err = withFiles(image, ts.MkAbs(value))
		case "config":
			image, err = withConfig(image, ts.ReadFile(value))
		default:
			err = fmt.Errorf("unknown option %q", o)
		}
	}
	return image, err
}

// withFiles puts the files of a directory into an image, owned by root.
func withFiles(image v1.Image, dir string) (v1.Image, error) {
	var headers []*tar.Header
	var contents [][]byte
	tree := os.DirFS(dir)
	err := fs.WalkDir(tree, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: path, Mode: int64(info.Mode().Perm()), Typeflag: tar.TypeDir}
		var data []byte
		switch info.Mode().Type() {
		case 0:
			h.Typeflag = tar.TypeReg
			data, err = fs.ReadFile(tree, path)
		case fs.ModeSymlink:
			h.Typeflag = tar.TypeSymlink
			h.Linkname, err = fs.ReadLink(tree, path)
		}
		if err != nil {
			return err
		}
		headers, contents = append(headers, h), append(contents, data)
		return nil
	})
	if err != nil {
		return nil, err
	}
	l, err := layer(headers, contents)
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(image, l)
}

// withConfig applies JSON to an image's config, such as {"User": "1000"}.
func withConfig(image v1.Image, text string) (v1.Image, error) {
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config := file.Config.DeepCopy()
	if err := json.Unmarshal([]byte(text), config); err != nil {
		return nil, err
	}
	return mutate.Config(image, *config)
}
