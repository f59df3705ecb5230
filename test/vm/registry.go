package main

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// registryAddress is the address on the node of the registry with the images of images.go.
const registryAddress = "127.0.0.1:5000"

// registriesConf returns a registries.conf that sends critest's pulls there.
func registriesConf() string {
	text := "unqualified-search-registries = [\"docker.io\"]\n"
	for _, host := range []string{"registry.k8s.io", "k8s.gcr.io", "gcr.io"} {
		text += fmt.Sprintf("[[registry]]\nlocation = %q\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", host, registryAddress)
	}
	return text
}

func serveRegistry(dir string) (stop func() error, err error) {
	l, err := net.Listen("tcp", registryAddress)
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: stored(dir)}
	go s.Serve(l)
	return s.Close, nil
}

// stored serves the pull part of the OCI distribution specification from
// manifests/<repository>/<tag or digest> and blobs/<digest>.
func stored(dir string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(filepath.Clean("/"+r.URL.Path), "/v2")
		if repository, ref, ok := strings.Cut(path, "/manifests/"); ok {
			data, err := os.ReadFile(filepath.Join(dir, "manifests", repository, ref))
			if err != nil {
				http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`, http.StatusNotFound)
				return
			}
			w.Header().Set("Content-Type", mediaType(data))
			w.Header().Set("Docker-Content-Digest", fmt.Sprintf("sha256:%x", sha256.Sum256(data)))
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			if r.Method != http.MethodHead {
				w.Write(data)
			}
			return
		}
		if _, digest, ok := strings.Cut(path, "/blobs/"); ok {
			w.Header().Set("Content-Type", "application/octet-stream")
			http.ServeFile(w, r, filepath.Join(dir, "blobs", digest))
		}
	})
}
