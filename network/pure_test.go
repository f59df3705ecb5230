package network

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/google/go-cmp/cmp"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Plugins of other vendors require these keys and formats.
func TestCapabilities(t *testing.T) {
	p := Pod{
		ID: "id", Name: "web", Namespace: "default", UID: "uid",
		Ports: []Port{
			{Protocol: "tcp", ContainerPort: 80, HostPort: 8080, HostIP: "127.0.0.1"},
			{Protocol: "udp", ContainerPort: 53},
		},
		IngressBPS:  8_000_000,
		Annotations: map[string]string{"a": "b"},
		CgroupPath:  "/kubepods/pod1",
		DNS:         DNS{Servers: []string{"10.0.0.10"}, Searches: []string{"svc"}, Options: []string{"ndots:5"}},
	}
	got, err := json.Marshal(capabilities(p, []netip.Prefix{netip.MustParsePrefix("10.1.0.7/24"), netip.MustParsePrefix("fd00::/64")}))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{` +
		`"bandwidth":{"ingressRate":8000000,"ingressBurst":2097152},` +
		`"cgroupPath":"/kubepods/pod1",` +
		`"dns":{"servers":["10.0.0.10"],"searches":["svc"],"options":["ndots:5"]},` +
		`"io.kubernetes.cri.pod-annotations":{"a":"b"},` +
		`"ipRanges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}]],` +
		`"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"127.0.0.1"}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	if got := capabilities(Pod{ID: "id"}, nil); len(got) != 0 {
		t.Errorf("a pod without requests has the capabilities %v", got)
	}
	var args []string
	for _, kv := range cniArgs(p) {
		args = append(args, kv[0]+"="+kv[1])
	}
	const wantArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=id;K8S_POD_UID=uid"
	if diff := cmp.Diff(wantArgs, strings.Join(args, ";")); diff != "" {
		t.Error(diff)
	}
}

// Addresses are returned in the plugins' order, and only those of eth0: the plugins choose
// the primary one, and the kubelet sorts by the node's family.
func TestResult(t *testing.T) {
	for name, c := range map[string]struct{ result, want string }{
		"IPv6 first": {`{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/ns"}],
			"ips":[{"address":"fd00::7/64","interface":1},{"address":"10.0.0.1/24","interface":0},{"address":"10.0.0.7/24","interface":1},{"address":"10.0.1.7/24"}]}`,
			"[fd00::7 10.0.0.7 10.0.1.7]"},
		"IPv6 only":       {`{"cniVersion":"1.0.0","ips":[{"address":"fd00::7/64"},{"address":"fd00::8/64"}]}`, "[fd00::7 fd00::8]"},
		"an old version":  {`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.7/24"},"ip6":{"ip":"fd00::7/64"}}`, "[10.0.0.7 fd00::7]"},
		"another's":       {`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.0.0.1/24","interface":0}]}`, ""},
		"no address":      {`{"cniVersion":"1.0.0"}`, ""},
		"the newest form": {`{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.7/24"}]}`, "[10.0.0.7]"},
	} {
		raw, err := create.CreateFromBytes([]byte(c.result))
		if err != nil {
			t.Fatal(err)
		}
		r, err := resultOf(raw)
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: no error, but %v", name, r.IPs)
			}
			continue
		}
		var got []string
		for _, ip := range r.IPs {
			got = append(got, ip.String())
		}
		if text := "[" + strings.Join(got, " ") + "]"; err != nil || text != c.want {
			t.Errorf("%s: got %v (err %v), want %s", name, text, err, c.want)
		}
	}
}

// A result with null in place of an address or an interface is the plugin's fault, in every version
// of CNI, and ADD is undone.
func TestResultWithANull(t *testing.T) {
	needsRoot(t) // the library enters the network namespace
	for _, result := range []string{
		`{"cniVersion":"1.0.0","ips":[null]}`, `{"cniVersion":"1.0.0","interfaces":[null],"ips":[{"address":"10.0.0.2/24","interface":0}]}`,
		`{"cniVersion":"0.4.0","interfaces":[null],"ips":[{"version":"4","address":"10.0.0.2/24"}]}`, `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24","routes":[null]}}`,
	} {
		n, o := fresh(t, false)
		version := result[len(`{"cniVersion":"`):][:5]
		writeConf(t, o.ConfDir, "n.conflist", strings.Replace(conflist("n", "odd"), "1.0.0", version, 1))
		deleted := filepath.Join(o.CacheDir, "deleted")
		script(t, o.BinDirs[0], "odd", `
case $CNI_COMMAND in
ADD) echo '`+result+`';;
DEL) : > `+deleted+`;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.2.0","0.4.0","1.0.0"]}';;
esac`)
		_, err := n.Attach(t.Context(), Pod{ID: "a", NetNS: "/proc/self/ns/net"})
		if err == nil || !strings.Contains(err.Error(), "plugin odd: there is a null in a list of its result") {
			t.Errorf("%s: %v", result, err)
		}
		if _, err := os.Stat(deleted); err != nil {
			t.Errorf("%s: the objects of ADD are still there: %v", result, err)
		}
	}
}

// The error of a failing plugin names the plugin and is not empty, whatever its output.
func TestPluginError(t *testing.T) {
	failed := errors.New("exit status 1")
	for _, c := range []struct {
		stdout, stderr, want string
		kind                 fault.Kind
	}{
		{`{"code":7,"msg":"bad","details":"worse"}`, "noise", "plugin p: bad; worse", fault.Internal},
		{`{"code":11,"msg":"later"}`, "", "plugin p: later", fault.Unavailable},
		{``, "panic: oh\n", `plugin p: exit status 1: "panic: oh"`, fault.Internal},
		{`oh`, "", `plugin p: exit status 1: "oh"`, fault.Internal},
		{``, "", "plugin p: exit status 1", fault.Internal},
	} {
		err := pluginError("p", failed, []byte(c.stdout), c.stderr)
		if err.Error() != c.want || fault.KindOf(err) != c.kind {
			t.Errorf("got %q (%v), want %q (%v)", err, fault.KindOf(err), c.want, c.kind)
		}
	}
}

// Instances never share a name, a bridge or a subnet, and names are short enough for the kernel.
func TestInstancesAreApart(t *testing.T) {
	seen := make(map[string]string)
	var subnets []netip.Prefix
	for _, instance := range []string{"", "a", "b", "0123456789abcdef0123456789abcdef"} {
		name, bridge := names(instance)
		if len(bridge) > 15 {
			t.Errorf("bridge %q is longer than IFNAMSIZ allows", bridge)
		}
		if other, ok := seen[bridge]; ok || seen["table "+name] != "" {
			t.Errorf("instances %q and %q share %s or %s", instance, other, bridge, name)
		}
		seen[bridge], seen["table "+name] = instance, "taken"
		for _, s := range candidate(instance, 0) {
			for _, other := range subnets {
				if s.Overlaps(other) {
					t.Errorf("subnets %v and %v overlap", s, other)
				}
			}
			subnets = append(subnets, s)
		}
	}
}

// All candidates are private, and the chosen one is free.
func TestSubnetCandidates(t *testing.T) {
	within := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for nth := range 600 {
		for i, s := range candidate("x", nth) {
			if s != s.Masked() || !within[i].Overlaps(s) || within[i].Bits() > s.Bits() {
				t.Errorf("candidate %d is %v", nth, s)
			}
		}
	}
	s := netip.MustParsePrefix("10.86.0.0/16")
	for _, c := range []struct {
		route         string
		strict, loose bool
	}{
		{"10.0.0.0/8", true, false},
		{"10.86.0.0/16", true, true},
		{"10.86.3.0/24", true, true},
		{"10.87.0.0/16", false, false},
	} {
		routes := []netip.Prefix{netip.MustParsePrefix(c.route)}
		if taken(s, routes, true) != c.strict || taken(s, routes, false) != c.loose {
			t.Errorf("route to %s: taken %v and %v, want %v and %v", c.route, taken(s, routes, true), taken(s, routes, false), c.strict, c.loose)
		}
	}
}
