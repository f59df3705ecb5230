package pull_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/pull"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// Credentials are tried from the most specific to the least, those of secrets before the node's.
func TestLookup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	text := `{"auths": {
		"https://index.docker.io/v1/": {"auth": "aHViOmh1Yg=="},
		"reg.example:5000": {"username": "node", "password": "n"},
		"reg.example:5000/team": {"username": "team", "password": "t"},
		"*.wild.example": {"username": "wild", "password": "w"}}}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	node, err := pull.LoadRing(path)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := node.With(
		&v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths": {"reg.example:5000": {"auth": "cG9kOnA="}}}`)}},
		&v1.Secret{Type: v1.SecretTypeDockercfg, Data: map[string][]byte{v1.DockerConfigKey: []byte(`{"old.example": {"auth": "b2xkOm8="}}`)}},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		image string
		users []string
	}{
		{"busybox", []string{"hub"}},
		{"me/app:1", []string{"hub"}},
		{"docker.io/library/busybox@sha256:1", []string{"hub"}},
		{"reg.example:5000/app:1", []string{"pod", "node"}},
		{"reg.example:5000/team/app", []string{"team", "pod", "node"}},
		{"reg.example/app", nil}, // another port
		{"a.wild.example/x", []string{"wild"}},
		{"a.b.wild.example/x", nil},
		{"old.example/x", []string{"old"}},
		{"other.example/x", nil},
	} {
		var users []string
		for _, c := range ring.Lookup(test.image) {
			users = append(users, c.Username)
		}
		if diff := cmp.Diff(test.users, users); diff != "" {
			t.Errorf("%s: %s", test.image, diff)
		}
	}
}

// Credentials that cannot be parsed are an error that does not show them.
func TestBroken(t *testing.T) {
	node, err := pull.LoadRing(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`secret`, `{"auths": {"r": {"auth": "secret!"}}}`, `{"auths": {"r": {"auth": "c2VjcmV0"}}}`} {
		s := &v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(text)}}
		s.Namespace, s.Name = "default", "pull"
		switch _, err := node.With(s); {
		case err == nil:
			t.Errorf("%s: no error", text)
		case cmp.Equal(err.Error(), text), strings.Contains(err.Error(), "secret!"):
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}
