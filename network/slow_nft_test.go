package network

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slowNFT puts a program in front of nft in PATH. Its first run executes the shell commands first,
// in which nft is the real one, and then hangs; later runs are nft's. The returned context ends
// soon after the first run hangs.
func slowNFT(t *testing.T, first string) context.Context {
	t.Helper()
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("needs nft")
	}
	dir := t.TempDir()
	begun := filepath.Join(dir, "begun")
	script(t, dir, "nft", `
[ -e `+begun+` ] && exec `+nft+` "$@"
`+strings.ReplaceAll(first, "nft", nft)+`
: > `+begun+`
exec sleep 1000`)
	t.Setenv("PATH", dir+":/usr/sbin:/usr/bin:/sbin:/bin")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for range 6000 {
			if unix.Access(begun, unix.F_OK) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return ctx
}

// nft is slow because of another program's large ruleset, and DEL is abandoned meanwhile. The next
// DEL finishes it: the pod's address will be reused, and the host port must not lead to the new
// pod.
func TestHostPortOfADetachedPodLeadsNowhere(t *testing.T) {
	n := open(t, options(t, ""))
	p := pod(t, "p")
	p.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12345}}
	attach(t, n, p)
	if err := n.Detach(slowNFT(t, ""), p); err == nil {
		t.Fatal("detach returned no error though nft has hung")
	}
	detach(t, n, p)
	if rules := ruleset(t); strings.Contains(rules, "12345") {
		t.Errorf("the host port still has a rule:\n%s", rules)
	}
	destroy(t, n)
}

// ADD is abandoned after nft has changed the kernel but before it has returned: none of the pod's
// host ports is left.
func TestHostPortOfAFailedAddLeadsNowhere(t *testing.T) {
	n := open(t, options(t, ""))
	other := pod(t, "other")
	attach(t, n, other) // makes the table
	p := pod(t, "p")
	p.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12345}}
	if _, err := n.Attach(slowNFT(t, `nft "$@"`), p); !errors.Is(err, context.Canceled) {
		t.Fatalf("attach: %v", err)
	}
	if rules := ruleset(t); strings.Contains(rules, "12345") {
		t.Errorf("the host port has a rule:\n%s", rules)
	}
	attach(t, n, p)
	detach(t, n, p)
	detach(t, n, other)
	destroy(t, n)
}
