package test

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/crisp-cri/crisp/test/testenv"
)

// An ordinary user's systemd delegates a cgroup to crispd, which is a service of it: containers have cgroups
// there, and outlive every daemon. In the end the user's systemd has nothing of it left.
//
// It is the real `systemd --user`, in namespaces: of the machine's systemd it needs only that there is one. The
// hierarchy has none of the controllers that it could delegate: a cgroup of version 1 has them here.
func TestUserManager(t *testing.T) {
	testenv.Need(t, "namespaces", "hybrid", "slirp4netns", "program:dbus-daemon", "program:newuidmap", "file:/lib/systemd/systemd")
	userSystemd(t, hostUser, userSession, "unshare", "--mount", "sh", "-exc", userMachine)
}

// The same with the package and the systemd of a node, which delegates controllers: containers have limits.
func TestUserOfNode(t *testing.T) {
	testenv.Need(t, "systemd", "cgroup2", "slirp4netns", "program:newuidmap", "file:/usr/lib/systemd/user/crisp.service")
	userSystemd(t, nodeUser, userSession, "sh", "-exc", userNode)
}

// A kubelet with KubeletInUserNamespace runs a pod beside that user's crispd, in its namespaces.
func TestKubeletByUser(t *testing.T) {
	testenv.Need(t, "systemd", "cgroup2", "slirp4netns", "program:newuidmap", "file:/usr/lib/systemd/user/crisp.service", "kubelet")
	userSystemd(t, nodeUser, kubeletSession, "sh", "-exc", userNode)
}

const nodeUser = 20036 // hostUser is in the range of systemd's dynamic users

// userSystemd runs a script, in which a user has the session.
func userSystemd(t *testing.T, uid int, session string, command ...string) {
	testenv.NeedRoot(t, "it makes namespaces and users")
	b := buildOnce(t)
	home, err := os.MkdirTemp("", "crisp-user-") // a short path, of which the user may pass each part
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	if err := os.Chown(home, uid, uid); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "HOME="+home, "BIN="+b.dir, "ARCHIVE="+b.archive, "IMAGE="+testImage, "U="+strconv.Itoa(uid), "SESSION="+session)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// userMachine makes a machine with cgroup v2 and a user's systemd, as root, and runs the session there.
const userMachine = `
umount -l /sys/fs/cgroup/unified
mount -t cgroup2 none /sys/fs/cgroup
group=/sys/fs/cgroup/user-test-$$
mkdir -p $group/user@$U.service/shell
chown -R $U:$U $group/user@$U.service
trap 'find $group -depth -type d -exec rmdir {} +' EXIT
mount -t tmpfs -o nosuid,nodev tmpfs /run
mkdir -p /run/systemd/system /run/user/$U
chown $U:$U /run/user/$U
for file in passwd group; do cp /etc/$file /run/$file; done
echo "crisp-user:x:$U:$U::$HOME:/bin/sh" >> /run/passwd
echo "crisp-user:x:$U:" >> /run/group
echo "crisp-user:1000000:65536" > /run/subuid
cp /run/subuid /run/subgid
for file in passwd group subuid subgid; do touch /etc/$file; mount --bind /run/$file /etc/$file; done
mount -t tmpfs tmpfs /dev/net
mknod -m 666 /dev/net/tun c 10 200
chmod 666 /dev/net/tun
mkdir -p /run/user/$U/systemd/user
for unit in crisp crisp-agent; do
	sed "s|@PREFIX@/bin|$BIN|" ../packaging/systemd-user/$unit.service.in > /run/user/$U/systemd/user/$unit.service
done
cp $ARCHIVE /run/image.tar
chown -R $U:$U /run/user/$U
GROUP=$group unshare --pid --fork --mount-proc --kill-child sh -exc '
	export PATH=$BIN:/usr/bin:/bin XDG_RUNTIME_DIR=/run/user/$U DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/$U/bus
	user() { setpriv --reuid $U --regid $U --init-groups "$@"; }
	cd /
	echo $$ > $GROUP/user@$U.service/cgroup.procs
	user dbus-daemon --session --address=$DBUS_SESSION_BUS_ADDRESS --nofork --nopidfile &
	user /lib/systemd/systemd --user --log-target=console &
	for i in $(seq 300); do user systemctl --user list-units > /dev/null && break; sleep 0.1; done
	echo $$ > $GROUP/user@$U.service/shell/cgroup.procs
	user sh -exc "$SESSION"'
`

// userNode makes a user of this machine, who lingers, and runs the session.
const userNode = `
useradd --uid $U --home-dir $HOME --no-create-home --shell /bin/sh crisp-user
trap 'loginctl disable-linger crisp-user; systemctl stop user@$U; userdel crisp-user; rm -f /run/image.tar' EXIT
usermod --add-subuids 1000000-1065535 --add-subgids 1000000-1065535 crisp-user
loginctl enable-linger crisp-user
for i in $(seq 300); do [ -S /run/user/$U/bus ] && break; sleep 0.1; done
cp $ARCHIVE /run/image.tar
pids=/run/user/$U/systemd/user/crisp-agent.service.d
mkdir -p $pids
printf '[Service]\nExecStart=\nExecStart=/usr/bin/crisp agent --pod-max-pids 50\n' > $pids/pids.conf
chmod 755 $pids
cd /
export XDG_RUNTIME_DIR=/run/user/$U DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/$U/bus CONTROLLERS=" cpu memory pids"
PATH=$BIN:/usr/bin:/bin setpriv --reuid $U --regid $U --init-groups sh -exc "$SESSION"
[ -z "$(find / -xdev -user $U -not -path "$HOME*")" ]
`

// userSession is what the user does.
const userSession = `
try() { for i in $(seq 200); do if "$@"; then return; fi; sleep 0.1; done; exit 1; }
pods() { crisp get pods | grep -E "$1"; }
systemctl --user daemon-reload
crispd check | grep "^ok *cgroups delegated to crispd:$CONTROLLERS"
systemctl --user start crisp crisp-agent
try crisp status
crisp image load -i /run/image.tar
cat > /run/user/$U/pods.yaml <<END
apiVersion: v1
kind: Pod
metadata: {name: limited}
spec:
  terminationGracePeriodSeconds: 1
  shareProcessNamespace: true
  containers:
  - name: main
    image: $IMAGE
    imagePullPolicy: Never
    args: [http, ":80", hello, sleep, for-ever]
    resources: {limits: {memory: 64Mi, cpu: 500m}}
    securityContext: {readOnlyRootFilesystem: true}
END
crisp apply -f /run/user/$U/pods.yaml
try pods "limited +1/1 +Running"
pid=$(pgrep -U $U -x testbin)
scope=$(systemctl --user list-units --no-legend "crisp-*.scope" | grep -o "crisp-[^ ]*scope")
group=/sys/fs/cgroup$(sed -n s/^0:://p /proc/$pid/cgroup)
case $group in */$scope/kubepods/*|*/$scope/crisp/*) ;; *) exit 1;; esac
for name in crisp-executor slirp4netns; do grep "^0::.*/$scope/" /proc/$(pgrep -U $U -x $name)/cgroup; done
crisp exec limited -- /testbin cat /proc/self/mountinfo | grep -E " / / .*overlay.*userxattr"
if [ "$CONTROLLERS" ]; then
	[ "$(cat $group/memory.max)" = 67108864 ]
	[ "$(cat $group/cpu.max)" = "50000 100000" ]
	[ "$(cat $group/../pids.max)" = 50 ]
	top() { crisp top pods | grep -E "limited +[0-9]+m +[1-9]"; }
	try top
	sed "s/limited/greedy/; s/args: .*/args: [eat, \"200\"]/" /run/user/$U/pods.yaml | crisp apply -f -
	try pods "greedy +0/1 +(OOMKilled|CrashLoopBackOff)"
	crisp describe pod/greedy | grep "ended with code 137 (OOMKilled)"
	crisp delete pod/greedy
fi
echo 1 > $group/cgroup.freeze
try grep "frozen 1" $group/cgroup.events
echo 0 > $group/cgroup.freeze
same() {
	try crisp exec limited -- /testbin print here
	[ "$(pgrep -U $U -x testbin)" = "$pid" ]
}
for i in 1 2 3 4 5; do
	kill -9 $(systemctl --user show -P MainPID crisp)
	try crisp exec limited -- /testbin print here
	kill -9 $(pgrep -U $U -x crisp-executor)
	same
done
[ -z "$(grep "fast init failed" /run/user/$U/crisp/executor.log)" ]
systemctl --user restart crisp crisp-agent
same
systemctl --user stop crisp-agent crisp
systemctl --user start crisp crisp-agent
same
crisp delete -f /run/user/$U/pods.yaml
systemctl --user stop crisp-agent crisp
crispd wipe --all
unshare --map-root-user --map-auto rm -r ~/.local/share/crisp-agent ~/.config/crisp
gone() { ! pgrep -U $U -l "crisp|slirp" && [ -z "$(systemctl --user list-units --all --no-legend "crisp*.scope")" ]; }
try gone
[ ! -e /run/user/$U/crisp ] && [ ! -e /run/user/$U/crisp-agent ]
[ -z "$(find /sys/fs/cgroup -path "*user@$U*" -name "crisp*.scope")" ]
[ -z "$(cd; find . -mindepth 1 ! -path "./.config*" ! -path ./.local ! -path ./.local/share)" ]
`

// kubeletSession is what the user of a kubelet does.
const kubeletSession = `
try() { for i in $(seq 200); do if "$@"; then return; fi; sleep 0.3; done; exit 1; }
systemctl --user daemon-reload
systemctl --user start crisp
try crisp image load -i /run/image.tar
mkdir -p ~/kubelet/pods
cat > ~/kubelet/config.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
featureGates: {KubeletInUserNamespace: true}
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/user/$U/crisp/crisp.sock
staticPodPath: $HOME/kubelet/pods
podLogsDir: $HOME/kubelet/logs
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
END
cat > ~/kubelet/pods/pod.yaml <<END
apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  containers:
  - name: main
    image: $IMAGE
    imagePullPolicy: Never
    args: [http, ":80", hello, sleep, for-ever]
    ports: [{containerPort: 80, hostPort: 18280}]
    readinessProbe: {httpGet: {path: /, port: 80}}
    resources: {limits: {memory: 64Mi, cpu: 500m}}
END
read keeper rest < /run/user/$U/crisp/keeper
# It writes to these directories, whatever its own is.
nsenter -t $keeper -U -m -n --preserve-credentials unshare --mount sh -exc "
	mount -t tmpfs tmpfs /var/lib
	mount -t tmpfs tmpfs /var/log
	exec $KUBELET --config ~/kubelet/config.yaml --root-dir ~/kubelet/root --hostname-override node" &
try pgrep -U $U -x testbin
group=/sys/fs/cgroup$(sed -n s/^0:://p /proc/$(pgrep -U $U -x testbin)/cgroup)
[ "$(cat $group/memory.max)" = 67108864 ]
try sh -c "bash -c 'exec 3<>/dev/tcp/127.0.0.1/18280; echo GET / HTTP/1.0 >&3; echo >&3; head -n 1 <&3' | grep '200 OK'"
kill $!
wait
systemctl --user stop crisp
crispd wipe --all
`
