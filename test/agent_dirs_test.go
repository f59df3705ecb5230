package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/test/testenv"
)

// The directory of a pod has the kubelet's layout. It is removed with the pod, but kept,
// also by the next agent, while a mount below it is not the agent's.
func TestAgentPodDirectories(t *testing.T) {
	l := startLab(t)
	l.object("conf", "kind: ConfigMap\nmetadata: {name: conf}\ndata: {a: one}\n")
	l.object("hidden", "kind: Secret\nmetadata: {name: hidden}\nstringData: {key: shh}\n")
	l.run(t, "dirs", `
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: hidden, secret: {secretName: hidden}}
  - {name: down, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - {name: all, projected: {sources: [{secret: {name: hidden}}]}}
  - {name: disk, emptyDir: {}}
  containers:
  - name: app
    image: IMAGE
    args: [sleep, for-ever]
    volumeMounts: [{name: conf, mountPath: /one, subPath: a}, {name: hidden, mountPath: /h}, {name: down, mountPath: /d}, {name: all, mountPath: /all}, {name: disk, mountPath: /disk}]
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		dir := filepath.Join(l.n.dir, "agent/pods", string(l.pod().UID))
		for path, want := range map[string]fs.FileMode{
			"etc-hosts": 0, "containers/app": fs.ModeDir, "plugins": fs.ModeDir,
			"volumes/kubernetes.io~configmap/conf/a": fs.ModeSymlink, "volumes/kubernetes.io~secret/hidden/key": fs.ModeSymlink,
			"volumes/kubernetes.io~downward-api/down/labels": fs.ModeSymlink, "volumes/kubernetes.io~projected/all/key": fs.ModeSymlink,
			"volumes/kubernetes.io~empty-dir/disk": fs.ModeDir, "volume-subpaths/conf/app/0": 0,
		} {
			if info, err := os.Lstat(filepath.Join(dir, path)); err != nil || info.Mode().Type() != want {
				t.Errorf("%s: %v, %v, want %v", path, info, err, want)
			}
		}
		if logs, err := filepath.Glob(filepath.Join(dir, "containers/app/*")); err != nil || len(logs) != 1 {
			t.Errorf("for the termination message there are %q, %v", logs, err)
		}

		// What every user in a container may write must be out of reach for other users of
		// the host.
		if found, err := reachable(filepath.Join(l.n.dir, "agent")); err != nil || len(found) > 0 {
			t.Errorf("another user of the host can reach %q, %v", found, err)
		}

		inside := filepath.Join(dir, "volumes/kubernetes.io~empty-dir/disk/inside")
		if err := os.Mkdir(inside, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", inside, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(inside, unix.MNT_DETACH) }) // if it is still mounted
		touch(t, filepath.Join(inside, "mine"))
		refused := func() int {
			log, err := os.ReadFile(filepath.Join(l.n.dir, "agent.log"))
			if err != nil {
				t.Fatal(err)
			}
			return strings.Count(string(log), inside+" is still mounted")
		}
		l.remove()
		l.until(func() bool { return refused() > 0 }, "its directory is not removed")
		if running := l.containers(""); len(running) > 0 {
			t.Errorf("it has containers: %v", running)
		}
		before := refused()
		l.restart()
		l.until(func() bool { return refused() > before }, "the next agent does not remove it either")
		for _, path := range []string{filepath.Join(inside, "mine"), filepath.Join(dir, "pod.json")} {
			if !testenv.Exists(path) {
				t.Errorf("%s is gone", path)
			}
		}
		if err := unix.Unmount(inside, 0); err != nil {
			t.Fatal(err)
		}
		l.until(func() bool { return !testenv.Exists(dir) }, "the directory is gone")
	})
}
