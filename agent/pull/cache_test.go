package pull

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/test/testenv"
	config "k8s.io/kubelet/config/v1"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// Expired credentials are removed from memory, whether or not the image is requested again.
func TestExpiredCredentialsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Plugins{cache: map[string]cached{}}
		p.keep("a", nil, time.Minute)
		p.keep("b", nil, time.Hour)
		time.Sleep(time.Minute)
		p.keep("c", nil, time.Minute)
		if _, expired := p.cache["a"]; expired || len(p.cache) != 2 {
			t.Errorf("kept are %v", p.cache)
		}
	})
}

// Credentials expire while the machine sleeps: a registry no longer accepts them when it wakes.
func TestCachedCredentialsAgeDuringSleep(t *testing.T) {
	const key = "cloud Global"
	p := &Plugins{dir: t.TempDir(), cache: map[string]cached{}}
	p.keep(key, map[string]credentialprovider.AuthConfig{"*": {Username: "u"}}, time.Hour)
	of := &config.CredentialProvider{Name: "cloud"}
	if _, err := p.ask(t.Context(), of, "r.example/app"); err != nil {
		t.Fatal(err)
	}
	p.cache[key] = cached{p.cache[key].auth, testenv.Slept(p.cache[key].until, 2*time.Hour)}
	if _, err := p.ask(t.Context(), of, "r.example/app"); err == nil { // there is no such program
		t.Error("expired credentials are used")
	}
}
