package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The generated unit is ordered after services that exist: it has the names of the package's units,
// and the package's directory for manifests.
func TestGenerateFitsThePackage(t *testing.T) {
	n := newNode(t)
	out, errs, code := n.crisp("generate systemd")
	if code != 0 {
		t.Fatal(errs)
	}
	for _, unit := range strings.Fields(regexp.MustCompile(`(?m)^After=(.*)$`).FindStringSubmatch(out)[1]) {
		if !strings.HasPrefix(unit, "crisp") {
			continue // a unit of systemd
		}
		if _, err := os.Stat("../../packaging/systemd/" + unit + ".in"); err != nil {
			t.Errorf("it waits for %s: %v", unit, err)
		}
	}
	packaged, err := os.ReadFile("../../packaging/systemd/crisp-agent.service.in")
	if err != nil {
		t.Fatal(err)
	}
	manifests := regexp.MustCompile(`--manifests \S+`)
	if want, got := manifests.FindString(string(packaged)), manifests.FindString(out); got != want {
		t.Errorf("%s, but the package's has %s", got, want)
	}
}
