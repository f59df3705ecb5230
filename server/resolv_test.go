package server

import (
	"os"
	"path/filepath"
	"testing"
)

// The stub of systemd-resolved listens on the node's loopback. A pod with its own network gets the
// servers behind it, if they are known.
func TestNameServersBehindTheStub(t *testing.T) {
	const stub, upstream = "nameserver 127.0.0.53\noptions edns0\nsearch lan\n", "nameserver 192.0.2.1\nsearch lan\n"
	for _, c := range []struct{ name, node, behind, want string }{
		{"a server elsewhere", upstream, "nameserver 192.0.2.9\n", upstream},
		{"the stub", stub, upstream, upstream},
		{"the stub over IPv6", "nameserver ::1\n", upstream, upstream},
		{"the stub and a server elsewhere", stub + upstream, "nameserver 192.0.2.9\n", stub + upstream},
		{"another stub than resolved's", stub, "", stub},
		{"resolved knows none", stub, "# empty\n" + stub, stub},
		{"no server at all", "search lan\n", upstream, "search lan\n"},
		{"a server with a zone", "nameserver fe80::1%eth0\n", upstream, "nameserver fe80::1%eth0\n"},
		{"no file", "", upstream, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			node, behind := filepath.Join(dir, "node"), filepath.Join(dir, "behind")
			for file, content := range map[string]string{node: c.node, behind: c.behind} {
				if content == "" {
					continue
				}
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := remoteResolvConf(node, behind)
			if err != nil || string(got) != c.want {
				t.Errorf("pod gets %q (err %v), want %q", got, err, c.want)
			}
		})
	}
}
