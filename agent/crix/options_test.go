package crix

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A pod with a network of its own gets no name server of the node's loopback, where
// nobody answers it, but those behind: on a node with systemd-resolved its names
// resolve.
func TestLoopbackNameServers(t *testing.T) {
	const stub = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n"
	for _, test := range []struct {
		what, node, behind, spec string
		servers, options         string
		told                     bool
	}{
		{"systemd-resolved", stub, "nameserver 192.0.2.7\nnameserver 192.0.2.8\n", "", "192.0.2.7 192.0.2.8", "", false},
		{"on the node's network", stub, "nameserver 192.0.2.7\n", "  hostNetwork: true\n", "127.0.0.53", "edns0 trust-ad", false},
		{"one is not of the loopback", "nameserver ::1\nnameserver 192.0.2.9\n", "nameserver 192.0.2.7\n", "", "192.0.2.9", "", false},
		{"no systemd-resolved", "nameserver 127.0.0.1\n", "", "", "", "", true},
		{"systemd-resolved without servers", stub, "search x.example\n", "", "", "edns0 trust-ad", true},
		{"the pod names its own", "nameserver 127.0.0.1\n", "", "  dnsConfig: {nameservers: [192.0.2.5]}\n", "192.0.2.5", "", false},
		{"the pod asks for its loopback", "nameserver 127.0.0.1\n", "", "  dnsConfig: {nameservers: [127.0.0.1]}\n", "127.0.0.1", "", false},
	} {
		t.Run(test.what, func(t *testing.T) {
			d, r, pod := record(t, "  containers: [{name: a, image: \"i:1\"}]\n"+test.spec)
			d.ResolvConf, d.resolved = filepath.Join(t.TempDir(), "resolv.conf"), filepath.Join(t.TempDir(), "resolv.conf")
			for path, text := range map[string]string{d.ResolvConf: test.node, d.resolved: test.behind} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			begin(t, d, pod)
			dns := r.config.DnsConfig
			if got := strings.Join(dns.Servers, " "); got != test.servers || strings.Join(dns.Options, " ") != test.options {
				t.Errorf("servers %q, options %q; want %q, %q", got, dns.Options, test.servers, test.options)
			}
			if told := r.told("DNSConfigForming"); told != test.told {
				t.Errorf("the event was told: %v", told)
			}
		})
	}
}

// A log shipper finds the log of each container by its pod's name, and finds
// nothing of one that is gone.
func TestLogLinks(t *testing.T) {
	d, _, pod := record(t, "  containers: [{name: a, image: \"i:1\"}]\n")
	d.LogLinks = filepath.Join(d.Root, "links")
	log := filepath.Join(d.podLogDir("default", "web", string(pod.UID)), "a", "0.log")
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.linkLog(pod, "a", "1234", log); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(d.LogLinks, "web_default_a-1234.log")
	if data, err := os.ReadFile(link); err != nil || string(data) != "hello" {
		t.Errorf("by its link: %q, %v", data, err)
	}
	if err := d.unlinkLog("1234"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(link); !os.IsNotExist(err) {
		t.Errorf("the link is left: %v", err)
	}
	pod.Name = strings.Repeat("n", 253)
	if name := filepath.Base(d.logLink(pod, "a", "1234")); len(name) != 255 {
		t.Errorf("a name of %d bytes", len(name))
	}
}
