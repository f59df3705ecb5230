package test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// guard pushes images to a registry of the node that wants the password of me from
// then on.
func (n *node) guard(t *testing.T, names ...string) {
	t.Helper()
	if err := n.useRegistry(newRegistry()); err != nil {
		t.Fatal(err)
	}
	image, err := testbinImage(n.testbin)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := n.push(name, image); err != nil {
			t.Fatal(err)
		}
	}
	n.registry.mu.Lock()
	n.registry.auth = "me:geheim"
	n.registry.mu.Unlock()
}

// asked is how often the registry was asked for anything.
func (r *fakeRegistry) asked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, times := range r.sent {
		n += times
	}
	return n
}

// pullSecret makes a Secret of this name with a password for the registry.
func (l *lab) pullSecret(name, password string) {
	l.t.Helper()
	auth := base64.StdEncoding.EncodeToString([]byte(password))
	config := fmt.Sprintf(`{"auths": {"%s": {"auth": "%s"}}}`, l.n.registry.host(), auth)
	l.object(name, "kind: Secret\nmetadata: {name: "+name+"}\ntype: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: '"+config+"'}\n")
}

// puller is the spec of a pod that runs an image of the registry.
func (l *lab) puller(image, secret, policy string) string {
	spec := fmt.Sprintf("\n  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: %s/%s, imagePullPolicy: %s, args: [sleep, for-ever]}]\n", l.n.registry.host(), image, policy)
	if secret != "" {
		spec = "\n  imagePullSecrets: [{name: " + secret + "}]" + spec
	}
	return spec
}

// waits waits until the container cannot begin for this reason, after an event with
// these words.
func (l *lab) waits(reason, words string) {
	l.t.Helper()
	l.until(func() bool {
		w := l.status("app").State.Waiting
		return w != nil && w.Reason == reason
	}, l.name+" waits: "+reason)
	if !slices.ContainsFunc(l.events(), func(e string) bool { return strings.Contains(e, words) }) {
		l.t.Errorf("%s: events %q, want one with %q", l.name, l.events(), words)
	}
	if c := l.containers(""); len(c) > 0 {
		l.t.Errorf("%s has containers: %v", l.name, c)
	}
}

// An image that one pod has pulled with its secret is here, and yet for no pod
// without: who has no secret or another asks the registry, and is sent away; who has
// the secret under another name needs no registry. So it is with the next agent.
func TestAgentCredentials(t *testing.T) {
	l := startLab(t)
	l.n.guard(t, "app:1")
	l.pullSecret("pull", "me:geheim")
	l.pullSecret("copy", "me:geheim")
	l.pullSecret("wrong", "me:falsch")
	l.run(t, "first", l.puller("app:1", "pull", "IfNotPresent"), func(t *testing.T, l *lab) {
		l.awaitReady()
		l.awaitEvent("Pulled: Successfully pulled image")
		others := func(when string) {
			none, wrong, never, same := l.pick(t, when+"-none"), l.pick(t, when+"-wrong"), l.pick(t, when+"-never"), l.pick(t, when+"-same")
			before := l.n.registry.asked()
			same.write(l.puller("app:1", "copy", "IfNotPresent"))
			same.awaitReady()
			same.awaitEvent("Pulled: Container image \"" + l.n.registry.host() + "/app:1\" already present on machine")
			never.write(l.puller("app:1", "", "Never"))
			never.waits("ErrImageNeverPull", "present with pull policy of Never, but the pod does not have the credentials")
			if after := l.n.registry.asked(); after != before {
				t.Errorf("%s the registry was asked %d times", when, after-before)
			}
			none.write(l.puller("app:1", "", "IfNotPresent"))
			wrong.write(l.puller("app:1", "wrong", "IfNotPresent"))
			none.waits("ImagePullBackOff", "unauthorized")
			wrong.waits("ImagePullBackOff", "unauthorized")
			if l.n.registry.asked() == before {
				t.Errorf("%s the registry was not asked", when)
			}
			for _, pod := range []*lab{none, wrong, never, same} {
				pod.remove()
				pod.until(func() bool { return pod.pod() == nil }, "pod "+pod.name+" is gone")
			}
		}
		others("now")
		l.restart()
		others("later")
		if s := l.status("app"); s.RestartCount != 0 || !s.Ready {
			t.Errorf("the first pod is %+v", s)
		}
	})
}

// A credential provider is asked for the password, and again when what it said is not
// good any more: as long as it says, for the image or all of the registry. What it
// knows is the node's: its images are for all pods.
func TestAgentCredentialProvider(t *testing.T) {
	n, _ := startNode(t)
	n.guard(t, "app:1", "app:2", "app:3", "app:4")
	dir := filepath.Join(n.dir, "providers")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	host := n.registry.host()
	says := func(kind, duration string) {
		t.Helper()
		write("answer", fmt.Sprintf(`{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
 "cacheKeyType": %q, "cacheDuration": %q, "auth": {%q: {"username": "me", "password": "geheim"}}}`, kind, duration, host), 0o644)
	}
	write("vault", fmt.Sprintf("#!/bin/sh\ncat >>%[1]s/asked\necho >>%[1]s/asked\ncat %[1]s/answer\n", dir), 0o755)
	write("config.yaml", fmt.Sprintf(`kind: CredentialProviderConfig
apiVersion: kubelet.config.k8s.io/v1
providers:
- {name: vault, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [%q], defaultCacheDuration: 0s}
`, host), 0o644)
	asked := func() (images []string) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, "asked"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if _, image, ok := strings.Cut(line, `"image":"`+host+"/"); ok {
				images = append(images, strings.Split(image, `"`)[0])
			}
		}
		return images
	}
	l := labOn(t, n, "--image-credential-provider-config", filepath.Join(dir, "config.yaml"), "--image-credential-provider-bin-dir", dir)
	pod := 0
	pull := func(image, policy string, want ...string) {
		t.Helper()
		pod++
		l.run(t, fmt.Sprintf("pod%d", pod), l.puller(image, "", policy), func(t *testing.T, l *lab) { l.awaitReady() })
		if got := asked(); !slices.Equal(got, want) {
			t.Errorf("after pod %d, of %s: asked for %q, want %q", pod, image, got, want)
		}
	}
	says("Registry", "1h")
	pull("app:1", "IfNotPresent", "app:1")
	pull("app:2", "IfNotPresent", "app:1") // it is of the same registry
	before := n.registry.asked()
	pull("app:1", "IfNotPresent", "app:1")
	if after := n.registry.asked(); after != before {
		t.Errorf("the registry was asked %d times for an image that is here", after-before)
	}
	l.restart()
	pull("app:1", "IfNotPresent", "app:1")
	says("Image", "1h")
	pull("app:1", "Always", "app:1", "app:1") // it is kept in memory alone
	pull("app:1", "Always", "app:1", "app:1")
	pull("app:3", "IfNotPresent", "app:1", "app:1", "app:3")
	says("Image", "0s")
	pull("app:4", "Always", "app:1", "app:1", "app:3", "app:4")
	pull("app:4", "Always", "app:1", "app:1", "app:3", "app:4", "app:4")
}
