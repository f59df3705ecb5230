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
)

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
