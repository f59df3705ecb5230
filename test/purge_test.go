package test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// purges runs postrm in a mount namespace of its own, with nothing of this machine
// below /etc, /run and /var/lib, whatever the script removes there.
const purges = `
mount -t tmpfs tmpfs /etc; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/lib
purge() { sh -c "$POSTRM" postrm purge 2>&1 && echo "status 0" || echo "status $?"; }

echo "--- a mount below"
mkdir -p /var/lib/crisp/here /run/crisp
mount -t tmpfs tmpfs /var/lib/crisp/here
touch /var/lib/crisp/here/data
purge
ls /var/lib/crisp/here
umount /var/lib/crisp/here

echo "--- a file system of its own"
mount -t tmpfs tmpfs /var/lib/crisp
touch /var/lib/crisp/image
purge
ls -A /var/lib/crisp
umount /var/lib/crisp

echo "--- nothing mounted"
mkdir /run/crisp
purge
for dir in /var/lib/crisp /run/crisp; do
	[ ! -e $dir ] || echo "$dir is left"
done
`

// A purge removes nothing through a mount that is still there: it may lead to
// somebody's data. Crisp's directory may be a file system of its own, which is all
// crisp's.
func TestPurgeKeepsMounts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	postrm, err := os.ReadFile("../packaging/debian/postrm")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-eu", "-c", purges)
	cmd.Env = append(os.Environ(), "POSTRM="+string(postrm))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const want = `--- a mount below
crisp: /var/lib/crisp and /run/crisp are kept, for there are mounts in them:
/var/lib/crisp/here
status 1
data
--- a file system of its own
rm: cannot remove '/var/lib/crisp': Device or resource busy
status 0
--- nothing mounted
status 0
`
	if got := string(out); strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
