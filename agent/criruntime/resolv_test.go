package criruntime

import (
	"os"
	"path/filepath"
	"testing"
)

// A pod that began before the node had name servers gets them while it runs, also from the next
// agent. What a container has made of the file stays until the pod has another sandbox.
func TestFollowResolvConf(t *testing.T) {
	d, r, pod := record(t, "  containers: [{name: a, image: \"i:1\"}]\n")
	node := filepath.Join(t.TempDir(), "resolv.conf")
	d.o.ResolvConf = node
	say := func(text string) {
		t.Helper()
		if err := os.WriteFile(node, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	path := d.files.ResolvFile(string(pod.UID))
	want := func(when, text string) {
		t.Helper()
		got, err := os.ReadFile(path)
		if info, serr := os.Stat(path); err != nil || serr != nil || info.Mode().Perm() != 0o644 {
			t.Fatalf("%s: %v, %v", when, err, info)
		}
		if string(got) != text {
			t.Errorf("%s: %q, want %q", when, got, text)
		}
	}
	say("")
	begin(t, d, pod)
	if !r.recorded("DNSConfigForming") {
		t.Error("no event says that the pod has no name server")
	}
	want("at first", "")
	mounted, err := os.Open(path) // as a mount of it keeps it open
	if err != nil {
		t.Fatal(err)
	}
	defer mounted.Close()
	say("search a.example\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n")
	d.FollowResolvConf(t.Context())
	want("with a network", "search a.example\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n")
	say("nameserver 192.0.2.3\n")
	d = again(t, d)
	d.FollowResolvConf(t.Context())
	want("a shorter one", "nameserver 192.0.2.3\n")
	buf := make([]byte, 100)
	if n, _ := mounted.ReadAt(buf, 0); string(buf[:n]) != "nameserver 192.0.2.3\n" {
		t.Errorf("a mount of the file has %q", buf[:n])
	}
	if err := os.Remove(node); err != nil {
		t.Fatal(err)
	}
	d.FollowResolvConf(t.Context())
	want("while it is replaced", "nameserver 192.0.2.3\n")
	if err := os.WriteFile(path, []byte("nameserver 10.8.0.1\n"), 0); err != nil {
		t.Fatal(err)
	}
	say("nameserver 192.0.2.4\n")
	d.FollowResolvConf(t.Context())
	want("of a VPN", "nameserver 10.8.0.1\n")
	if err := d.files.RemoveResolvConf(string(pod.UID)); err != nil {
		t.Fatal(err)
	}
	say("nameserver 192.0.2.5\n")
	d.FollowResolvConf(t.Context())
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("a pod without containers has the file: %v", err)
	}
}

// A pod with its own name servers alone, or with a file of its own there, has the runtime's.
func TestOwnResolvConf(t *testing.T) {
	for spec, follows := range map[string]bool{
		"  containers: [{name: a, image: \"i:1\"}]\n":                                                                                                         true,
		"  dnsPolicy: None\n  dnsConfig: {nameservers: [192.0.2.9]}\n  containers: [{name: a, image: \"i:1\"}]\n":                                             false,
		"  volumes: [{name: v, hostPath: {path: /tmp}}]\n  containers: [{name: a, image: \"i:1\", volumeMounts: [{name: v, mountPath: /etc/}]}]\n":            false,
		"  volumes: [{name: v, hostPath: {path: /tmp}}]\n  containers: [{name: a, image: \"i:1\", volumeMounts: [{name: v, mountPath: /etc/resolv.conf}]}]\n": false,
	} {
		d, r, pod := record(t, spec)
		d.o.ResolvConf = filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(d.o.ResolvConf, []byte("nameserver 192.0.2.1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		begin(t, d, pod)
		if _, err := os.Stat(d.files.ResolvFile(string(pod.UID))); (err == nil) != follows {
			t.Errorf("%s: %v, follows %v; calls %v", spec, err, follows, r.calls)
		}
	}
}
