package test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/testenv"
)

// purges runs postrm in its own mount namespace, with empty file systems at /etc, /run and
// /var/lib, so that the script cannot remove anything of the machine.
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

echo "--- a mount below the agent's"
mkdir -p /var/lib/crisp-agent/here
mount -t tmpfs tmpfs /var/lib/crisp-agent/here
touch /var/lib/crisp-agent/here/data
purge
ls /var/lib/crisp-agent/here
umount /var/lib/crisp-agent/here

echo "--- volumes of claims"
mkdir -p /var/lib/crisp-agent/pvc/default/db /var/lib/crisp-agent/objects
touch /var/lib/crisp-agent/pvc/default/db/data /var/lib/crisp-agent/token
purge
(cd /var/lib/crisp-agent && find . -type f)
rm -r /var/lib/crisp-agent

echo "--- nothing mounted but volumes of pods"
mkdir -p /run/crisp /var/lib/crisp-agent/pods/u/volumes/memory /var/lib/crisp-agent/pvc "/var/lib/crisp-agent/pods/u/volumes/a b"
mount -t tmpfs tmpfs /var/lib/crisp-agent/pods/u/volumes/memory
mkdir /var/lib/crisp-agent/pods/u/volumes/memory/part
mount -t tmpfs tmpfs /var/lib/crisp-agent/pods/u/volumes/memory/part
mount -t tmpfs tmpfs "/var/lib/crisp-agent/pods/u/volumes/a b"
purge
for dir in /var/lib/crisp /run/crisp /var/lib/crisp-agent; do
	[ ! -e $dir ] || echo "$dir is left"
done
`

// A purge removes nothing behind a mount, which may be someone's data. Crisp's own directory may be
// a mount point, and its file system is emptied.
func TestPurgeKeepsMounts(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
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
crisp: /var/lib/crisp, /var/lib/crisp-agent and /run/crisp are kept because of mounts in them:
/var/lib/crisp/here
status 1
data
--- a file system of its own
rm: cannot remove '/var/lib/crisp': Device or resource busy
status 0
--- a mount below the agent's
crisp: /var/lib/crisp, /var/lib/crisp-agent and /run/crisp are kept because of mounts in them:
/var/lib/crisp-agent/here
status 1
data
--- volumes of claims
crisp: /var/lib/crisp-agent/pvc is kept: it contains the volumes of claims
status 0
./pvc/default/db/data
--- nothing mounted but volumes of pods
status 0
`
	if got := string(out); strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// removals runs prerm and postrm like purges, with the programs of $PROGRAMS installed
// until the package is removed.
const removals = `
mount -t tmpfs tmpfs /etc; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/lib
install -D "$PROGRAMS/crispd" /run/programs/bin/crispd
install -D -t /run/programs/libexec/crisp "$PROGRAMS/crisp-executor" "$PROGRAMS/crisp-podinit"
mkdir -p /usr/libexec
mount --bind /run/programs /mnt
installed() { mount -t overlay -o lowerdir=/mnt/bin:/usr/bin overlay /usr/bin; mount --bind /mnt/libexec /usr/libexec; }
remove() {
	sh -c "$PRERM" prerm remove 2>&1
	umount -l /usr/bin /usr/libexec
}
reboot() { umount -l /run; mount -t tmpfs tmpfs /run; }
purge() {
	sh -c "$POSTRM" postrm purge 2>&1 && echo "status 0" || echo "status $?"
	for dir in /var/lib/crisp /run/crisp; do
		[ ! -e $dir ] || echo "$dir is left"
	done
}
pod() { mkdir -p $1/crisp/sandboxes/4f5c; }

echo "--- a pod that the executor died under"
installed; pod /run; pod /var/lib
remove
purge

echo "--- a reboot after the removal"
installed; pod /run; pod /var/lib
remove
reboot
purge

echo "--- a reboot before the removal"
installed; pod /var/lib
remove
ls /var/lib/crisp/removed
purge

echo "--- no pod"
installed; mkdir -p /var/lib/crisp/sandboxes
remove
ls /var/lib/crisp
purge
`

// A purge removes what the removal of the package has left, although the programs are gone and no
// process of crisp runs: the executor may have died, and it does not survive a reboot.
func TestPurgeAfterAReboot(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	cmd := exec.Command("unshare", "--mount", "--net", "--propagation", "private", "sh", "-eu", "-c", removals)
	cmd.Env = append(os.Environ(), "PROGRAMS="+buildOnce(t).dir)
	for name, file := range map[string]string{"PRERM": "prerm", "POSTRM": "postrm"} {
		script, err := os.ReadFile("../packaging/debian/" + file)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, name+"="+string(script))
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const runs = "crisp: 1 pods keep running, unmanaged. Installing crisp again takes them over; purging it ends them and removes images and state.\n"
	const want = `--- a pod that the executor died under
` + runs + `crisp: ending all pods
status 0
--- a reboot after the removal
` + runs + `crisp: ending all pods
status 0
--- a reboot before the removal
crisp-executor
crispd
crisp: ending all pods
status 0
--- no pod
sandboxes
status 0
`
	var got strings.Builder
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, `"msg":"leftover was removed"`) { // the pod, which has no record
			got.WriteString(line)
		}
	}
	if strings.TrimSpace(got.String()) != strings.TrimSpace(want) {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}
