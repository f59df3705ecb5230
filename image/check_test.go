package image_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/crisp-cri/crisp/test/oddfiles"
)

// Whatever is where a file about images could be, nothing waits for it, and it fails only the pulls
// that it is about, in its own name.
func TestOddFile(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	reg.Push("app", "v1", imagetest.Build(t, "gzip", "a"))
	p := imagetest.NewPlace(t, reg)
	in := func(name string) string { return filepath.Join(p.Dir, name) }
	o := image.Settings{Settings: registry.Settings{
		RegistriesConf: in("registries.conf"), RegistriesConfDir: in("registries.conf.d"), PolicyPath: in("p.json"), PolicyDir: in("ps"),
		RegistriesDir: in("registries.d"), AuthFile: in("a.json"), AuthDir: in("as"), HostsDirs: []string{in("certs.d")},
	}, KeysDir: in("ks")}
	const nowhere = "127.0.0.1:1"
	for name, tt := range map[string]struct {
		host   string // of the pull that it concerns
		others bool   // it concerns no other pulls
	}{
		"registries.conf.d/50.conf":          {reg.Host, false},
		"registries.d/50.yaml":               {reg.Host, false},
		"p.json":                             {reg.Host, false},
		"a.json":                             {reg.Host, false},
		"ps/team.json":                       {reg.Host, true},
		"as/team.json":                       {reg.Host, true},
		"certs.d/" + nowhere + "/hosts.toml": {nowhere, true},
		"certs.d/" + nowhere + "/a.crt":      {nowhere, true},
		"ks/a.pem":                           {"", true}, // concerns encrypted images
	} {
		imagetest.WriteFile(t, in("p.json"), `{"default":[{"type":"insecureAcceptAnything"}]}`)
		odd := in(name)
		imagetest.WriteFile(t, odd, "") // makes its directory
		if err := os.Remove(odd); err != nil {
			t.Fatal(err)
		}
		oddfiles.Each(t, odd, func(kind string) {
			image.Check(o)
			p.Reopen(image.Options{Settings: o})
			must := kind == "pipe" || kind == "huge" || kind == "garbage" && !strings.HasSuffix(name, ".crt")
			fine := strings.HasPrefix(name, "registries") && (kind == "empty" || kind == "link to /dev/null")
			if must && tt.host != "" || tt.host == reg.Host { // any other kind may be as if it were not there
				_, err := p.Store.Pull(t.Context(), tt.host+"/app:v1", registry.Caller{Namespace: "team"})
				if err == nil && must || err != nil && (fine || !strings.Contains(err.Error(), odd)) {
					t.Errorf("%s at %s: %v", kind, name, err)
				}
			}
			if !tt.others {
				return
			}
			if _, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{}); err != nil {
				t.Errorf("%s at %s: what it does not concern: %v", kind, name, err)
			}
		})
	}
}

// Errors in a configuration file for images are reported at once, not at the next pull: by crispd
// check, and in the log at each start and reload.
func TestCheck(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	var log bytes.Buffer
	p.Log = slog.New(slog.NewTextHandler(&log, nil))
	p.Reopen(image.Options{})
	in := func(name string) string { return filepath.Join(p.Dir, name) }
	good := image.Settings{Settings: registry.Settings{RegistriesConf: in("regs.conf"), RegistriesConfDir: in("none"), PolicyPath: in("p.json"), PolicyDir: in("ps"), AuthFile: in("a.json"), AuthDir: in("as")}, KeysDir: in("ks")}
	const accept, pem = `{"default":[{"type":"insecureAcceptAnything"}]}`, "-----BEGIN PRIVATE KEY-----\n"
	for name, text := range map[string]string{
		"regs.conf": "", "p.json": accept, "ps/team.json": accept, "a.json": "{}", "as/team.json": `{"auths":{"a.example":{"auth":"YTpi"}}}`, "ks/k.pem": pem, "ks/k.pub": "public",
	} {
		imagetest.WriteFile(t, in(name), text)
	}
	if err := os.Chmod(in("ks/k.pub"), 0o644); err != nil {
		t.Fatal(err)
	}
	if wrong := image.Check(good); len(wrong) > 0 {
		t.Errorf("check reports %q about good files", wrong)
	}
	for name, text := range map[string]string{
		"regs.conf": "x", "p.json": "{", "ps/team.json": `{"default":[]}`, "a.json": "{", "as/team.json": `{"auths":{"a.example":{"auth":"!"}}}`, "ks/k.pem": pem,
	} {
		before, err := os.ReadFile(in(name))
		if err != nil {
			t.Fatal(err)
		}
		imagetest.WriteFile(t, in(name), text)
		if name == "ks/k.pem" {
			if err := os.Chmod(in(name), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		if wrong := image.Check(good); len(wrong) != 1 || !strings.Contains(wrong[0], in(name)) {
			t.Errorf("%s: it says %q", name, wrong)
		}
		log.Reset()
		p.Store.Reconfigure(good)
		if !strings.Contains(log.String(), in(name)) || !strings.Contains(log.String(), "level=WARN") {
			t.Errorf("%s: the log has %q", name, log.String())
		}
		imagetest.WriteFile(t, in(name), string(before))
		if err := os.Chmod(in(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.Reopen(image.Options{})
}
