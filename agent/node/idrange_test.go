package node

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestPool(t *testing.T) {
	dir := t.TempDir()
	for _, uid := range []string{"a", "b", "c"} {
		if err := os.Mkdir(filepath.Join(dir, uid), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	open := func() *IDPool {
		p, err := OpenIDs(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	of := func(p *IDPool, uid string) uint32 {
		t.Helper()
		u, err := p.Of(uid, nil)
		if err != nil {
			t.Fatal(err)
		}
		if m := u.Uids[0]; m.Length != IDsPerPod || m.ContainerId != 0 || m.HostId == 0 || m.HostId%IDsPerPod != 0 || u.Gids[0].HostId != m.HostId {
			t.Errorf("%s has %v", uid, u)
		}
		return u.Uids[0].HostId
	}
	p := open()
	a, b := of(p, "a"), of(p, "b")
	if a == b || of(p, "a") != a {
		t.Errorf("a has %d, b %d, a then %d", a, b, of(p, "a"))
	}
	// Another agent finds the same IDs, and gives a new pod others.
	p = open()
	c := of(p, "c")
	if of(p, "a") != a || of(p, "b") != b || c == a || c == b {
		t.Errorf("after a restart: a %d, b %d, c %d", of(p, "a"), of(p, "b"), c)
	}
	if err := p.Free("a"); err != nil {
		t.Fatal(err)
	}
	p.first, p.last = b/IDsPerPod, b/IDsPerPod
	if _, err := p.Of("a", nil); err == nil {
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
	// No pod gets the node's own IDs, also not by an overflow, nor the greatest ID.
	for line, want := range map[string][2]uint32{
		"crisp:4294901760:131072": {},
		"crisp:4294967000:65536":  {},
		"crisp:0:65536":           {},
		"crisp:0:196608":          {1, 2},
		"crisp:65536:4294901760":  {1, 65534},
	} {
		u := write("subuid", line+"\n")
		if first, last, ok := subordinate(u, u); ok != (want != [2]uint32{}) || first != want[0] || last != want[1] {
			t.Errorf("%s: got %d to %d, %t", line, first, last, ok)
		}
	}
}

// IDs of the node itself in a record are not used.
func TestRecordOfOwnIDs(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "userns"), []byte(`{"uidMappings":[{"hostId":0,"length":65536}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := OpenIDs(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if u, err := p.Of("a", nil); err == nil {
		t.Errorf("the pod has %v", u)
	}
}

// Two pods never have the same IDs: neither those of another agent or a kubelet on the same
// runtime, nor those of a pod with an unreadable record, which gets no new ones.
func TestOthersRanges(t *testing.T) {
	dir := t.TempDir()
	for _, uid := range []string{"lost", "new", "next"} {
		if err := os.Mkdir(filepath.Join(dir, uid), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	record := filepath.Join(dir, "lost", "userns")
	if err := os.WriteFile(record, []byte(`{"uidMappings":`), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := OpenIDs(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p.first, p.last = 1, 6
	inUse := func() ([]*cri.IDMapping, error) {
		return []*cri.IDMapping{{HostId: IDsPerPod, Length: IDsPerPod}, {HostId: 2*IDsPerPod + 7, Length: IDsPerPod}, {HostId: 9, Length: 0}}, nil
	}
	if u, err := p.Of("new", inUse); err != nil || u.Uids[0].HostId != 4*IDsPerPod {
		t.Errorf("the new pod has %v, %v", u, err)
	}
	if u, err := p.Of("next", func() ([]*cri.IDMapping, error) { return nil, errors.New("away") }); err == nil {
		t.Errorf("a runtime that does not tell: %v", u)
	}
	if u, err := p.Of("lost", inUse); err == nil {
		t.Errorf("the pod that had IDs has got %v", u)
	}
	if data, err := os.ReadFile(record); err != nil || string(data) != `{"uidMappings":` {
		t.Errorf("its record is %s, %v", data, err)
	}
	for range 2 { // it is readable again
		if err := os.WriteFile(record, []byte(`{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if u, err := p.Of("lost", inUse); err != nil || u.Uids[0].HostId != IDsPerPod {
			t.Errorf("read again: %v, %v", u, err)
		}
	}
	if err := p.Free("lost"); err != nil {
		t.Fatal(err)
	}
}
