package idrange

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

func TestPool(t *testing.T) {
	dir := t.TempDir()
	for _, uid := range []string{"a", "b", "c"} {
		if err := os.Mkdir(filepath.Join(dir, uid), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	open := func() *Pool {
		p, err := Open(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	of := func(p *Pool, uid string) uint32 {
		t.Helper()
		u, err := p.Of(uid)
		if err != nil {
			t.Fatal(err)
		}
		if m := u.Uids[0]; m.Length != Length || m.ContainerId != 0 || m.HostId == 0 || m.HostId%Length != 0 || u.Gids[0].HostId != m.HostId {
			t.Errorf("%s has %v", uid, u)
		}
		return u.Uids[0].HostId
	}
	p := open()
	a, b := of(p, "a"), of(p, "b")
	if a == b || of(p, "a") != a {
		t.Errorf("a has %d, b %d, a then %d", a, b, of(p, "a"))
	}
	// Another agent gives them the same, and to a new pod others.
	p = open()
	c := of(p, "c")
	if of(p, "a") != a || of(p, "b") != b || c == a || c == b {
		t.Errorf("after a restart: a %d, b %d, c %d", of(p, "a"), of(p, "b"), c)
	}
	if err := p.Free("a"); err != nil {
		t.Fatal(err)
	}
	p.first, p.last = b/Length, b/Length
	if _, err := p.Of("a"); err == nil {
		t.Error("a range was given away twice")
	}
}

func TestSubordinate(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	u := write("subuid", "root:1:1\nkubelet:100000:7208960\n")
	if first, last, ok := subordinate(u, u); !ok || first != 2 || last != 110 {
		t.Errorf("got %d to %d, %t", first, last, ok)
	}
	if _, _, ok := subordinate(u, write("subgid", "kubelet:1:65536\n")); ok {
		t.Error("the two files do not agree")
	}
}
