package registry

import (
	"os"
	"path/filepath"
	"testing"
)

// A hosts.toml is written by hand: whatever it contains, the result is mirrors with an
// address, or an error.
func FuzzHosts(f *testing.F) {
	for _, text := range []string{
		"", "server = 1", "server = \"\"\n[host]\n", "[host.\"\"]\n", "[host.\"http://[::1\"]\n", "[host.\"https://a/v2/b?c#d\"]\noverride_path = true\n",
		"server = \"https://x\"\n[host.\"http://a:0\"]\ncapabilities = [\"pull\", 7]\nca = [[\"x\"]]\nclient = [[\"a\", \"b\", \"c\"], \"d\"]\nskip_verify = \"yes\"\n",
		"[host.a]\ndial_timeout = \"-1\"\nheader = {a = {b = 1}}\n[host.a.b]\n", "host = [1]\n", "[host.\"unix:///x\\u0000\"]\n", "ca = 1\nclient = [1, [2]]\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "hosts.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := readHosts(path, "registry.example")
		if err != nil {
			return
		}
		for _, e := range append(h.conf.Mirrors, h.conf.Endpoint) {
			if e.Location == "" {
				t.Errorf("an endpoint without an address: %+v", h.conf)
			}
		}
	})
}
