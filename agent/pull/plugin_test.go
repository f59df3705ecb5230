package pull_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/pull"
)

// plugin makes a credential provider that returns this answer and records its requests.
func plugin(t *testing.T, dir, name, answer string) {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\n{ cat; echo \" $* $EXTRA\"; } >>%s/asked\ncat <<'END'\n%s\nEND\n", dir, answer)
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

func asked(t *testing.T, dir string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(dir, "asked"))
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

const providers = `kind: CredentialProviderConfig
apiVersion: kubelet.config.k8s.io/v1
providers:
- name: cloud
  matchImages: ["*.cloud.example", "cloud.example:5000/team"]
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [--region, x]
  env: [{name: EXTRA, value: why}]
- name: broken
  matchImages: ["broken.example"]
  defaultCacheDuration: 0s
  apiVersion: credentialprovider.kubelet.k8s.io/v1
`

// Plugins are called for the images in their configuration, once per cache duration. A failure is
// logged without the plugin's output.
func TestPlugins(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte(providers), 0o600); err != nil {
		t.Fatal(err)
	}
	plugin(t, dir, "cloud", `{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheKeyType": "Registry",
 "auth": {"*.cloud.example": {"username": "u", "password": "p"}, "other.example": {"username": "o", "password": "p"}}}`)
	plugin(t, dir, "broken", "the secret is 1234")
	var log bytes.Buffer
	p, err := pull.LoadPlugins(config, dir, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ image, users, asked string }{
		{"other.example/app", "", ""},
		{"a.cloud.example/app:1", "u", `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.cloud.example/app:1","kind":"CredentialProviderRequest"} --region x why`},
		{"a.cloud.example/other", "u", ""}, // of a registry with a cached answer
		{"b.cloud.example/app", "u", `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"b.cloud.example/app","kind":"CredentialProviderRequest"} --region x why`},
		{"broken.example/app", "", `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"broken.example/app","kind":"CredentialProviderRequest"}  `},
	} {
		users := ""
		for _, c := range p.Lookup(t.Context(), test.image) {
			if users += c.Username; c.Source != nil {
				t.Errorf("%s: credentials of a secret", test.image)
			}
		}
		if users != test.users {
			t.Errorf("%s: credentials of %q", test.image, users)
		}
		if got := asked(t, dir)[0]; got != test.asked {
			t.Errorf("%s: asked %q, want %q", test.image, got, test.asked)
		}
	}
	if !strings.Contains(log.String(), "credential provider failed") || strings.Contains(log.String(), "1234") {
		t.Errorf("log %s", log.String())
	}
	if (*pull.Plugins)(nil).Lookup(t.Context(), "a.cloud.example/app") != nil {
		t.Error("no plugins have credentials")
	}
}

func TestPluginConfig(t *testing.T) {
	dir := t.TempDir()
	plugin(t, dir, "cloud", "")
	plugin(t, dir, "broken", "")
	for name, edit := range map[string][2]string{
		"another kind":     {"CredentialProviderConfig", "Pod"},
		"unknown field":    {"  env:", "  environment:"},
		"a path":           {"name: cloud", "name: ../cloud"},
		"not there":        {"name: cloud", "name: absent"},
		"twice":            {"name: broken", "name: cloud"},
		"no images":        {`matchImages: ["broken.example"]`, "matchImages: []"},
		"no duration":      {"  defaultCacheDuration: 1h\n", ""},
		"another version":  {"apiVersion: credentialprovider.kubelet.k8s.io/v1\n  args", "apiVersion: v1\n  args"},
		"service accounts": {"  args: [--region, x]", "  tokenAttributes: {}"},
	} {
		config := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(config, []byte(strings.Replace(providers, edit[0], edit[1], 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := pull.LoadPlugins(config, dir, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
