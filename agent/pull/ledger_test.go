package pull_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/pull"
)

func open(t *testing.T, root string, policy pull.Policy, listed ...string) *pull.Ledger {
	t.Helper()
	l, err := pull.OpenLedger(root, policy, listed)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func pullDone(t *testing.T, l *pull.Ledger, image, id string, by *pull.Source) {
	t.Helper()
	if err := l.Begin(image); err != nil {
		t.Fatal(err)
	}
	if err := l.Done(image, id, by); err != nil {
		t.Fatal(err)
	}
}

// The pods that may use an image that required a secret: those with that secret, a later version of
// it, or one with the same content; also after restarts of the agent.
func TestSecrets(t *testing.T) {
	root := t.TempDir()
	good := pull.Source{UID: "1", Namespace: "a", Name: "pull", Hash: "h"}
	pullDone(t, open(t, root, pull.NeverVerifyPreloaded), "reg.example/app:1", "id", &good)
	rotated, copied, other := good, good, pull.Source{UID: "3", Namespace: "b", Name: "pull", Hash: "o"}
	rotated.Hash, copied.UID, copied.Namespace = "new", "2", "b"
	for _, test := range []struct {
		name, image string
		secrets     []pull.Source
		want        bool
	}{
		{"no secret", "reg.example/app:1", nil, false},
		{"another", "reg.example/app:1", []pull.Source{other}, false},
		{"that one", "reg.example/app:1", []pull.Source{other, good}, true},
		{"by another tag", "reg.example/app:2", []pull.Source{good}, true},
		{"by another name", "other.example/app:1", []pull.Source{good}, false},
		{"a copy of it", "reg.example/app:1", []pull.Source{copied}, true},
		{"the copy, changed", "reg.example/app:1", []pull.Source{{UID: "2", Namespace: "b", Name: "pull", Hash: "x"}}, true},
		{"changed", "reg.example/app:1", []pull.Source{rotated}, true},
		{"one with the changed content", "reg.example/app:1", []pull.Source{{UID: "9", Name: "z", Hash: "new"}}, true},
	} {
		l := open(t, root, pull.NeverVerifyPreloaded)
		if got, err := l.MayUse(test.image, "id", test.secrets); err != nil || got != test.want {
			t.Errorf("%s: %v, %v", test.name, got, err)
		}
	}
	// Once it was pulled without a secret, all pods may use it.
	l := open(t, root, pull.NeverVerifyPreloaded)
	pullDone(t, l, "reg.example/app:1", "id", nil)
	pullDone(t, l, "reg.example/app:1", "id", &other)
	if got, err := l.MayUse("reg.example/app:1", "id", nil); err != nil || !got {
		t.Errorf("public by now: %v, %v", got, err)
	}
}

// An image that arrived while the agent died counts as pulled, with unknown credentials.
func TestDiedWhilePulling(t *testing.T) {
	root := t.TempDir()
	if err := open(t, root, pull.NeverVerifyPreloaded).Begin("reg.example/app:1"); err != nil {
		t.Fatal(err)
	}
	l := open(t, root, pull.NeverVerifyPreloaded)
	if got, err := l.MayUse("reg.example/app:1", "id", nil); err != nil || got {
		t.Errorf("%v, %v", got, err)
	}
	// The next pull resolves that.
	pullDone(t, l, "reg.example/app:1", "id", nil)
	if got, err := open(t, root, pull.NeverVerifyPreloaded).MayUse("reg.example/app:1", "id", nil); err != nil || !got {
		t.Errorf("%v, %v", got, err)
	}
	// The failure of one of two concurrent pulls proves nothing about the other.
	for range 2 {
		if err := l.Begin("reg.example/two:1"); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []bool{false, true} { // then it is another client's image
		if err := l.Failed("reg.example/two:1"); err != nil {
			t.Fatal(err)
		}
		if got, err := l.MayUse("reg.example/two:1", "id2", nil); err != nil || got != want {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
}

func TestPolicies(t *testing.T) {
	secret := &pull.Source{UID: "1", Name: "s", Hash: "h"}
	for _, test := range []struct {
		policy            pull.Policy
		loaded, byASecret bool // whether pods without a secret may use it
	}{{pull.NeverVerify, true, true}, {pull.NeverVerifyPreloaded, true, false}, {pull.AlwaysVerify, false, false}} {
		l := open(t, t.TempDir(), test.policy)
		pullDone(t, l, "reg.example/app", "id", secret)
		for id, want := range map[string]bool{"loaded": test.loaded, "id": test.byASecret} {
			if got, err := l.MayUse("reg.example/app", id, nil); err != nil || got != want {
				t.Errorf("%s, %s: %v, %v", test.policy, id, got, err)
			}
		}
	}
	l := open(t, t.TempDir(), pull.NeverVerifyAllowlisted, "reg.example/app", "reg.example/team/*", "busybox")
	for image, want := range map[string]bool{
		"reg.example/app:1": true, "reg.example/app/x": false, "reg.example/team/x@sha256:1": true, "reg.example/teams/x": false, "busybox:1": true, "docker.io/library/busybox": true, "other": false,
	} {
		if got, err := l.MayUse(image, "id", nil); err != nil || got != want {
			t.Errorf("%s: %v, %v", image, got, err)
		}
	}
}

// Records of images that the runtime no longer has are removed. An unreadable record permits no
// pod.
func TestPrune(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, pull.NeverVerifyPreloaded)
	secret := &pull.Source{UID: "1", Name: "s", Hash: "h"}
	pullDone(t, l, "reg.example/here", "here", secret)
	pullDone(t, l, "reg.example/gone", "gone", secret)
	for _, since := range []time.Time{time.Now().Add(-time.Hour), time.Now().Add(time.Hour)} {
		if err := l.Prune(func(id string) bool { return id == "here" }, since); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(root, "images", "pulled"))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	if err := os.WriteFile(filepath.Join(root, "images", "pulled", entries[0].Name()), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := l.MayUse("reg.example/here", "here", []pull.Source{*secret}); err == nil || got {
		t.Errorf("%v, %v", got, err)
	}
	pullDone(t, l, "reg.example/here", "here", nil)
	if got, err := l.MayUse("reg.example/here", "here", nil); err != nil || !got {
		t.Errorf("after a pull: %v, %v", got, err)
	}
}
