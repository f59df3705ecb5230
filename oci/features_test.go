package oci_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/oci"
)

// An OCI runtime has the features that it reports; if its report cannot be parsed, the
// error names its path, and no handler is made of it.
func TestAskFeatures(t *testing.T) {
	for says, want := range map[string]oci.Features{
		`{"mountOptions": ["ro", "rro"], "linux": {"mountExtensions": {"idmap": {"enabled": true}}}}`: {RecursiveRO: true, IDMap: true},
		`{"mountOptions": ["ro"], "linux": {"mountExtensions": {"idmap": {"enabled": false}}}}`:       {},
		`{"mountOptions": ["rro"], "linux": {"mountExtensions": {"idmap": {}}}}`:                      {RecursiveRO: true},
		`{"mountOptions": ["nosymfollow"], "linux": {"netDevices": {"enabled": true}}}`:               {NoSymFollow: true, NetDevices: true},
		`{"linux": {"netDevices": {"enabled": false}}}`:                                               {},
		`{"mountOptions": null, "linux": null}`:                                                       {},
		`{}`:                                                                                          {},
	} {
		path := engineThat(t, `[ "$*" = features ] && echo '`+says+`'`)
		if got, err := oci.AskFeatures(t.Context(), path); err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", says, got, err, want)
		}
	}
	for _, script := range []string{`exit 1`, `echo '{'`, `:`, `echo '[]'`, `echo '{"mountOptions": "rro"}'`} {
		path := engineThat(t, script)
		if got, err := oci.AskFeatures(t.Context(), path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %+v, %v; want an error with its path", script, got, err)
		}
	}
	if _, err := oci.AskFeatures(t.Context(), "/no/such"); err == nil {
		t.Error("a missing OCI runtime has features")
	}
}

// engineThat returns an OCI runtime that is a shell script.
func engineThat(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "engine")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
