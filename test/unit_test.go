package test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// A service that runs pods is restarted however often it fails. By default systemd gives up after
// five starts in ten seconds (systemd.unit(5)): a disk that is full for that long would stop the
// node until an administrator logs in. Nor does a unit require another one: it would not be started
// again after that one failed to start ("Dependency failed"). No unit raises the soft limit of open
// files, because containers would inherit it.
func TestUnits(t *testing.T) {
	units, err := filepath.Glob("../packaging/systemd/*.service.in")
	if err != nil || len(units) < 2 {
		t.Fatalf("the units are %q, %v", units, err)
	}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`(?ms)^\[Unit\][^[]*^StartLimitIntervalSec=0$`, `(?ms)^\[Service\].*^Restart=always$`} {
			if !regexp.MustCompile(want).Match(text) {
				t.Errorf("%s has no %s", unit, want)
			}
		}
		if found := regexp.MustCompile(`(?m)^(Requires|Requisite|BindsTo|PartOf)=.*`).Find(text); found != nil {
			t.Errorf("%s has %s", unit, found)
		}
		if filepath.Base(unit) == "crisp.service.in" && regexp.MustCompile(`(?m)^LimitNOFILE=`).Match(text) {
			t.Errorf("%s limits open files", unit)
		}
	}
}
