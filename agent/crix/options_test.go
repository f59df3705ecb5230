package crix

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Each DNS policy, with a cluster's name server and without.
func TestDNSPolicies(t *testing.T) {
	d := driver(t)
	node := []string{"192.0.2.53"}
	for _, test := range []struct {
		spec     string
		cluster  []string
		servers  []string
		searches string
		options  string
	}{
		{"", nil, node, "a.example b.example", "ndots:2 rotate"},
		{"", []string{"10.9.0.10"}, []string{"10.9.0.10"}, "default.svc.c.test svc.c.test c.test a.example b.example", "ndots:5"},
		{"  dnsPolicy: Default\n", []string{"10.9.0.10"}, node, "a.example b.example", "ndots:2 rotate"},
		{"  hostNetwork: true\n", []string{"10.9.0.10"}, node, "a.example b.example", "ndots:2 rotate"},
		{"  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet\n", []string{"10.9.0.10"}, []string{"10.9.0.10"}, "default.svc.c.test svc.c.test c.test a.example b.example", "ndots:5"},
		{"  dnsPolicy: None\n  dnsConfig: {nameservers: [192.0.2.1], searches: [x.example]}\n", nil, []string{"192.0.2.1"}, "x.example", ""},
	} {
		d.ClusterDNS, d.ClusterDomain = test.cluster, "c.test"
		pod := read(t, "  containers: [{name: a, image: i}]\n"+test.spec)
		dns, _, err := d.dnsConfig(pod)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.servers, dns.Servers); diff != "" || strings.Join(dns.Searches, " ") != test.searches || strings.Join(dns.Options, " ") != test.options {
			t.Errorf("%s, cluster %v: %v", test.spec, test.cluster, dns)
		}
	}
}

// What resolvers cannot use is left out.
func TestDNSLimits(t *testing.T) {
	d := driver(t)
	pod := read(t, "  containers: [{name: a, image: i}]\n  dnsConfig: {nameservers: [192.0.2.1, 192.0.2.2, 192.0.2.3]}\n")
	var text strings.Builder
	for range 40 {
		text.WriteString(strings.Repeat("a", 60) + string(rune('a'+text.Len()%20)) + ".example ")
	}
	pod.Spec.DNSConfig.Searches = strings.Fields(text.String())
	pod.Spec.DNSConfig.Searches[0] = strings.Repeat("long.", 60) + "example"
	dns, told, err := d.dnsConfig(pod)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Join(dns.Searches, " ")
	if len(dns.Servers) != 3 || len(dns.Searches) > 32 || len(line) > 2048 || strings.Contains(line, "long.") {
		t.Errorf("%d servers, %d searches of %d bytes", len(dns.Servers), len(dns.Searches), len(line))
	}
	if len(told) != 2 || !strings.Contains(told[0], "3 name servers") || !strings.Contains(told[1], "32 search domains") {
		t.Errorf("told %q", told)
	}
}

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

// CPU limits need not be enforced.
func TestCPUQuota(t *testing.T) {
	d := driver(t)
	half := resource.MustParse("500m")
	if r := d.limits(nil, half, resource.Quantity{}); r.CpuQuota != 50000 || r.CpuPeriod != 100000 || r.CpuShares != 512 {
		t.Errorf("enforced: %v", r)
	}
	d.NoCPUQuota = true
	if r := d.limits(nil, half, resource.Quantity{}); r.CpuQuota != 0 || r.CpuPeriod != 0 || r.CpuShares != 512 {
		t.Errorf("not enforced: %v", r)
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

// Mounts that are to be read-only all the way down are so, or not there at all,
// unless the pod takes what it can get.
func TestRecursiveReadOnly(t *testing.T) {
	for _, test := range []struct {
		wish string
		can  bool
		want string
	}{
		{"Enabled", true, "true"}, {"Enabled", false, `mount /h: the runtime's handler "" has no recursive read-only mounts`},
		{"IfPossible", true, "true"}, {"IfPossible", false, "false"}, {"Disabled", true, "false"},
	} {
		d := driver(t)
		d.Features = func(string) *cri.RuntimeHandlerFeatures {
			return &cri.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: test.can}
		}
		pod := read(t, "  containers: [{name: a, image: i, volumeMounts: [{name: h, mountPath: /h, readOnly: true, recursiveReadOnly: "+test.wish+"}]}]\n  volumes: [{name: h, hostPath: {path: /srv}}]\n")
		if err := d.makeFiles(pod); err != nil {
			t.Fatal(err)
		}
		config, err := d.containerConfig(pod, &pod.Spec.Containers[0], podsync.Action{Name: "a"}, "sha256:1", &cri.Image{Id: "sha256:1"}, nil)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = strconv.FormatBool(config.Mounts[0].RecursiveReadOnly)
		}
		if got != test.want {
			t.Errorf("%s, can %v: %s, want %s", test.wish, test.can, got, test.want)
		}
	}
}
