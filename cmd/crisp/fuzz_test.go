package main

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/apiserver"
	"github.com/spf13/pflag"
)

// FuzzKubeletConfig reads arbitrary files as a KubeletConfiguration, into flags of every type.
func FuzzKubeletConfig(f *testing.F) {
	for _, text := range []string{
		"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstaticPodPath: /m\nclusterDNS: [10.0.0.10, \"::1\"]\nreadOnlyPort: 10255\nhealthzPort: 0\nhealthzBindAddress: 1\n",
		"kind: KubeletConfiguration\nevictionHard: {memory.available: 5%, x: [1]}\nsystemReserved: {cpu: 1, memory: ~}\ncrashLoopBackOff: {maxContainerRestartPeriod: 5s}\nserializeImagePulls: true\ncpuCFSQuota: false\n",
		"kind: KubeletConfiguration\nregistryPullQPS: 1e99\nmaxParallelImagePulls: -1\nfailSwapOn: {a: b}\nenableServer: [true]\n", "kind: [KubeletConfiguration]", "", "[]", "kind: Pod", "{", "? {a: b}\n: c\n",
		"kind: KubeletConfiguration\ncrashLoopBackOff: 7\nclusterDNS: {a: b}\nimageGCHighThresholdPercent: {}\nshutdownGracePeriod: [~]\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n",
	} {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "kubelet.yaml")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		c := &cli{stdout: io.Discard, stderr: io.Discard}
		flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
		var o apiserver.Options
		takeNode := nodeFlags(flags, &o.Node)
		for _, name := range kubeletKeys {
			switch {
			case flags.Lookup(name) != nil:
			case strings.Contains(name, "parallel"):
				flags.Int(name, 0, "")
			case strings.Contains(name, "qps"):
				flags.Float64(name, 0, "")
			case strings.HasPrefix(name, "seccomp"):
				flags.Bool(name, false, "")
			default:
				flags.String(name, "", "")
			}
		}
		for _, name := range []string{"read-only-address", "healthz-address"} {
			flags.String(name, "", "")
		}
		flags.Duration("max-container-restart-period", 0, "")
		flags.Bool("no-cpu-quota", false, "")
		if err := c.readKubeletConfig(flags, file); err == nil {
			_ = takeNode() // an error is fine
		}
	})
}

// FuzzCopyOut unpacks an untrusted archive from a container: nothing may be written outside the
// destination.
func FuzzCopyOut(f *testing.F) {
	archive := func(headers ...tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			h.Mode = 0o644
			if err := w.WriteHeader(&h); err != nil {
				f.Fatal(err)
			}
			if h.Size > 0 {
				if _, err := w.Write(make([]byte, h.Size)); err != nil {
					f.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	f.Add(archive(tar.Header{Name: "a", Typeflag: tar.TypeDir}, tar.Header{Name: "a/b", Typeflag: tar.TypeReg, Size: 3}), "a")
	f.Add(archive(tar.Header{Name: "a/../../secret", Typeflag: tar.TypeReg, Size: 3}, tar.Header{Name: "aa/secret", Typeflag: tar.TypeReg}), "a")
	f.Add(archive(tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "../secret"}, tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 3}), "a")
	f.Add(archive(tar.Header{Name: "a/b", Typeflag: tar.TypeLink, Linkname: "secret"}, tar.Header{Name: "a/b", Typeflag: tar.TypeReg, Size: 3}), "a")
	f.Add(archive(tar.Header{Name: "../secret", Typeflag: tar.TypeReg, Size: 3}), "..")
	f.Add(archive(tar.Header{Name: "./secret", Typeflag: tar.TypeReg, Size: 3}, tar.Header{Name: "/", Typeflag: tar.TypeDir}), "/")
	f.Add(archive(tar.Header{Name: "secret", Typeflag: tar.TypeReg, Size: 3}), "")
	f.Fuzz(func(t *testing.T, data []byte, base string) {
		top := t.TempDir()
		dir, secret := filepath.Join(top, "dir"), filepath.Join(top, "secret")
		near := filepath.Join(dir, "secret")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{secret, near} {
			if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_ = unpack(bytes.NewReader(data), path.Base(base), filepath.Join(dir, "to"), func(string, string) {})
		for _, path := range []string{secret, near} {
			if got, err := os.ReadFile(path); err != nil || string(got) != "secret" {
				t.Errorf("%s holds %q, %v", path, got, err)
			}
		}
		for in, want := range map[string]int{top: 2, dir: 2} {
			if entries, err := os.ReadDir(in); err != nil || len(entries) > want {
				t.Errorf("in %s there is %v", in, entries)
			}
		}
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !d.Type().IsRegular() {
				t.Errorf("%s is a %v", path, d.Type())
			}
			return err
		})
	})
}
