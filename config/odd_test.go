package config_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/test/oddfiles"
)

// Whatever is where a drop-in could be, crispd does not start without it: a part of the
// configuration may be what keeps the node safe. The error names the file.
func TestOddFile(t *testing.T) {
	dir := write(t, map[string]string{"config.toml": "", "config.d/10.toml": ""})
	odd := filepath.Join(dir, "config.d", "50.toml")
	oddfiles.Each(t, odd, func(kind string) {
		_, err := config.Load(config.Source{File: filepath.Join(dir, "config.toml")})
		if good := kind == "empty" || kind == "link to /dev/null"; good != (err == nil) || !good && !strings.Contains(err.Error(), odd) {
			t.Errorf("%s: %v", kind, err)
		}
	})
}
