package rootless

import (
	"encoding/json"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// slirp answers as slirp4netns 1.2 does.
type slirp struct {
	next int
	has  []entry
}

func (s *slirp) answer(request map[string]json.RawMessage) any {
	var what string
	json.Unmarshal(request["execute"], &what)
	failed := map[string]any{"error": map[string]string{"desc": "bad request: " + what}}
	switch what {
	case "list_hostfwd":
		return map[string]any{"entries": s.has}
	case "remove_hostfwd":
		var e entry
		json.Unmarshal(request["arguments"], &e)
		i := slices.IndexFunc(s.has, func(has entry) bool { return has.ID == e.ID })
		if i < 0 {
			return failed
		}
		s.has = slices.Delete(s.has, i, i+1)
		return map[string]any{"return": map[string]any{}}
	}
	var f Forward
	json.Unmarshal(request["arguments"], &f)
	if slices.ContainsFunc(s.has, func(e entry) bool { return e.HostPort == f.HostPort && e.Protocol == f.Protocol }) {
		return failed
	}
	s.next++
	s.has = append(s.has, entry{s.next, f})
	return map[string]any{"return": map[string]int{"id": s.next}}
}

// serve answers one request for each connection.
func (s *slirp) serve(t *testing.T) *Ports {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var request map[string]json.RawMessage
			if json.NewDecoder(conn).Decode(&request) == nil {
				json.NewEncoder(conn).Encode(s.answer(request))
			}
			conn.Close()
		}
	}()
	return &Ports{path}
}

func forward(port int32, to string) Forward {
	return Forward{"tcp", netip.IPv4Unspecified(), port, netip.MustParseAddr(to), 80}
}

func TestPorts(t *testing.T) {
	p := (&slirp{}).serve(t)
	has := func(want ...Forward) {
		t.Helper()
		list, err := p.list(t.Context())
		var got []Forward
		for _, e := range list {
			got = append(got, e.Forward)
		}
		if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" || err != nil {
			t.Errorf("ports: %v %s", err, d)
		}
	}
	one, two, three := forward(1, "10.0.0.1"), forward(2, "10.0.0.1"), forward(3, "10.0.0.2")
	if err := p.Add(t.Context(), []Forward{one, two}); err != nil {
		t.Fatal(err)
	}
	// One that is taken leaves none of those before it, and the other pod's.
	err := p.Add(t.Context(), []Forward{three, forward(2, "10.0.0.2")})
	if err == nil || !strings.Contains(err.Error(), "host port 2 of 0.0.0.0, tcp: it is in use") {
		t.Errorf("a port that is taken: %v", err)
	}
	has(one, two)
	if err := p.Remove(t.Context(), []Forward{two, three, forward(1, "10.0.0.2")}); err != nil {
		t.Error(err)
	}
	has(one)
	if err := p.Set(t.Context(), []Forward{three, one}); err != nil {
		t.Error(err)
	}
	has(one, three)
	if err := p.Set(t.Context(), nil); err != nil {
		t.Error(err)
	}
	has()
	var none *Ports
	if err := none.Remove(t.Context(), []Forward{one}); err != nil {
		t.Error(err)
	}
}
