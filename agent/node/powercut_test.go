package node

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/test/powercut"
)

// A pod keeps its user IDs after a power cut, because they own files in its volumes, and no two
// pods have the same IDs.
func TestPowerCut(t *testing.T) {
	dir := t.TempDir()
	for _, uid := range []string{"a", "b", "c"} {
		if err := os.Mkdir(filepath.Join(dir, uid), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	powercut.Case{
		Name: "idrange",
		Dir:  dir,
		Run: func(dir string, safe func(string)) {
			p, err := OpenIDs(dir, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Error(err)
				return
			}
			take := func(uid string) {
				ns, err := p.Of(uid, nil)
				if err != nil {
					t.Error(err)
					return
				}
				safe(fmt.Sprint(uid, " ", ns.Uids[0].HostId))
			}
			take("a")
			take("b")
			if err := p.Free("a"); err != nil {
				t.Error(err)
			}
			safe("a -")
			take("c") // the former IDs of a
		},
		Check: func(dir string, safe []string) error {
			var said bytes.Buffer
			p, err := OpenIDs(dir, slog.New(slog.NewTextHandler(&said, nil)))
			if err != nil || said.Len() > 0 {
				return fmt.Errorf("%v, %s", err, said.String())
			}
			owners := map[uint32]string{}
			for uid, n := range p.taken {
				if owners[n] != "" {
					return fmt.Errorf("%s and %s have the same", uid, owners[n])
				}
				owners[n] = uid
			}
			want := map[string]string{}
			for _, s := range safe {
				uid, ids, _ := strings.Cut(s, " ")
				want[uid] = ids
			}
			for uid, ids := range want {
				if uid == "a" && len(safe) > 1 {
					ids = "-" // being released: it may still have them
				}
				n, ok := p.taken[uid]
				if ids != "-" && (!ok || fmt.Sprint(n*IDsPerPod) != ids) {
					return fmt.Errorf("%s has %d, want %s", uid, n*IDsPerPod, ids)
				}
			}
			return nil
		},
	}.Test(t)
}
