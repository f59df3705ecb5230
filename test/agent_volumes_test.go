package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// object writes one more manifest beside the pod's.
func (l *lab) object(name, text string) {
	l.t.Helper()
	path := filepath.Join(l.manifests, l.name+"-"+name+".yaml")
	if err := os.WriteFile(path+".tmp", []byte("apiVersion: v1\n"+text), 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { os.Remove(path) })
}

// The volumes of one pod, as its containers see them.
func TestAgentVolumes(t *testing.T) {
	l := startLab(t)
	l.run(t, "objects", `
  securityContext: {fsGroup: 1234}
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: hidden, secret: {secretName: hidden, defaultMode: 0400}}
  - {name: down, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - name: all
    projected: {sources: [{configMap: {name: conf, items: [{key: a, path: x/a}]}}, {secret: {name: hidden}}]}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: disk, emptyDir: {}}
  - {name: kept, persistentVolumeClaim: {claimName: kept}}
  containers:
  - name: app
    image: IMAGE
    args: [sleep, for-ever]
    env: [{name: WHO, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    volumeMounts:
    - {name: conf, mountPath: /conf}
    - {name: conf, mountPath: /one, subPath: a}
    - {name: hidden, mountPath: /hidden}
    - {name: down, mountPath: /down}
    - {name: all, mountPath: /all}
    - {name: memory, mountPath: /memory}
    - {name: disk, mountPath: /disk, subPathExpr: of/$(WHO)}
    - {name: kept, mountPath: /kept}
`, func(t *testing.T, l *lab) {
		l.awaitEvent("FailedMount")
		if l.phase() != "Pending" {
			t.Errorf("without its objects the pod is %s", l.phase())
		}
		l.object("conf", "kind: ConfigMap\nmetadata: {name: conf}\ndata: {a: one}\n")
		l.object("hidden", "kind: Secret\nmetadata: {name: hidden}\nstringData: {key: shh}\n")
		l.object("kept", "kind: PersistentVolumeClaim\nmetadata: {name: kept}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}\n")
		l.awaitReady()
		uid := string(l.pod().UID)
		cat := func(path string) string { return strings.TrimSpace(l.exec("app", "cat", path)) }
		for path, want := range map[string]string{
			"/conf/a": "one", "/one": "one", "/hidden/key": "shh", "/down/labels": `test="objects"`, "/all/x/a": "one", "/all/key": "shh",
		} {
			if got := cat(path); got != want {
				t.Errorf("%s is %q, want %q", path, got, want)
			}
		}
		pod := filepath.Join(l.n.dir, "agent/pods", uid)
		if _, err := os.Stat(filepath.Join(pod, "volumes/kubernetes.io~empty-dir/disk/of/objects")); err != nil {
			t.Errorf("subPathExpr: %v", err)
		}
		claim := filepath.Join(l.n.dir, "agent/pvc/default/kept")
		if err := os.WriteFile(filepath.Join(claim, "f"), []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := cat("/kept/f"); got != "mine" {
			t.Errorf("the claim has %q", got)
		}
		// An edit reaches the running pod, but for what is mounted by subPath. All files
		// of a volume change at once: they are links through one that is replaced.
		volume := filepath.Join(pod, "volumes/kubernetes.io~configmap/conf")
		if target, err := os.Readlink(filepath.Join(volume, "a")); err != nil || target != "..data/a" {
			t.Errorf("a file of the volume is %q, %v", target, err)
		}
		before, err := os.Readlink(filepath.Join(volume, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		l.object("conf", "kind: ConfigMap\nmetadata: {name: conf}\ndata: {a: two}\n")
		l.until(func() bool { return cat("/conf/a") == "two" && cat("/all/x/a") == "two" }, "the edit is seen in the pod")
		if took := time.Since(begin); took > 90*time.Second {
			t.Errorf("the edit took %s", took)
		}
		if now, err := os.Readlink(filepath.Join(volume, "..data")); err != nil || now == before {
			t.Errorf("the link is %q, %v, before it was %q", now, err, before)
		}
		if _, err := os.Stat(filepath.Join(volume, before)); !os.IsNotExist(err) {
			t.Errorf("the old files: %v", err)
		}
		if got := cat("/one"); got != "one" {
			t.Errorf("a subPath mount followed: %q", got)
		}
		if n := l.status("app").RestartCount; n != 0 {
			t.Errorf("%d restarts", n)
		}
	})
	if _, err := os.Stat(filepath.Join(l.n.dir, "agent/pvc/default/kept/f")); err != nil {
		t.Errorf("the claim went with its pod: %v", err)
	}
}
