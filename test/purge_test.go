package test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/test/testenv"
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

echo "--- behind links"
mkdir -p /run/disk/crisp/images /run/disk/agent/pods/u/volumes/part /run/disk/data
touch /run/disk/data/file
mount --bind /run/disk/data /run/disk/agent/pods/u/volumes/part
ln -s /run/disk/crisp /run/disk/agent /var/lib
mv /var/lib/agent /var/lib/crisp-agent
purge
ls -A /var/lib
cd /run/disk && find . | sort
`

// A purge removes nothing behind a mount, which may be the administrator's data. Crisp's own
// directory may be a mount point, and its file system is emptied.
func TestPurgeKeepsMounts(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	out := packageScripts(t, purges, "postrm")
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
--- behind links
status 0
.
./data
./data/file
`
	if got := out; strings.TrimSpace(got) != strings.TrimSpace(want) {
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
ls /var/lib/crisp/removed
purge

echo "--- a state directory elsewhere"
installed; mkdir -p /etc/crisp /run/elsewhere/sandboxes/4f5c
echo 'state = "/run/elsewhere"' >/etc/crisp/config.toml
remove
purge
ls -d /run/elsewhere 2>&1 || true
`

// reinstalls removes the package and installs it again, with a systemctl that keeps the names of
// active units in a file.
const reinstalls = `
mount -t tmpfs tmpfs /etc; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/lib
mkdir -p /run/systemd/system /run/fake
cat >/run/fake/systemctl <<'END'
#!/bin/sh
verb=$1; shift
for unit; do case $verb in
is-active) if grep -qx $unit /run/active; then echo active; else echo inactive; exit 3; fi ;;
start) grep -qx $unit /run/active || echo $unit >>/run/active ;;
stop) sed -i "/^$unit\$/d" /run/active ;;
esac; done
END
printf '#!/bin/sh\n' | tee /run/fake/getent /run/fake/crispd >/dev/null
chmod 755 /run/fake/*
PATH=/run/fake:$PATH

again() {
	printf "$1" >/run/active
	[ "$2" = upgrade ] || sh -c "$PRERM" prerm remove
	sh -c "$POSTINST" postinst configure ${3-}
	echo $(cat /run/active)
	[ ! -e /var/lib/crisp/removed ] || echo "something is left"
}
echo "--- installed"; again "" upgrade
echo "--- again, after the daemon ran"; again "crisp.service\n" remove 1.0
echo "--- again, after the agent ran, too"; again "crisp-agent.service\ncrisp.service\n" remove 1.0
echo "--- upgraded, with everything stopped"; again "" upgrade 1.0
`

// Installing the package again after its removal starts what ran; an upgrade starts nothing that
// was stopped.
func TestReinstall(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	const want = `--- installed
crisp.service
--- again, after the daemon ran
crisp.service
--- again, after the agent ran, too
crisp.service crisp-agent.service
--- upgraded, with everything stopped

`
	if got := packageScripts(t, reinstalls, "prerm", "postinst"); strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// packageScripts runs a script in namespaces of its own. The package's scripts of these names are in
// variables of their names in upper case.
func packageScripts(t *testing.T, script string, names ...string) string {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--net", "--propagation", "private", "sh", "-eu", "-c", script)
	cmd.Env = append(os.Environ(), "PROGRAMS="+buildOnce(t).dir)
	for _, name := range names {
		cmd.Env = append(cmd.Env, strings.ToUpper(name)+"="+string(read(t, "../packaging/debian/"+name)))
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// A purge removes what the removal of the package has left, although the programs are gone and no
// process of crisp runs: the executor may have died, and it does not survive a reboot.
func TestPurgeAfterAReboot(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	out := packageScripts(t, removals, "prerm", "postrm")
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
status 0
--- a state directory elsewhere
` + runs + `crisp: ending all pods
status 0
ls: cannot access '/run/elsewhere': No such file or directory
`
	var got strings.Builder
	for line := range strings.Lines(out) {
		if !strings.Contains(line, `"msg":"leftover was removed"`) { // the pod, which has no record
			got.WriteString(line)
		}
	}
	if strings.TrimSpace(got.String()) != strings.TrimSpace(want) {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}
