package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hangingPlugin is a CNI plugin. Its ADD hangs while %[1]s exists, and writes its PID to %[2]s.
const hangingPlugin = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
ADD)
	if [ -e %[1]s ]; then
		trap "" TERM
		echo $$ > %[2]s.new
		mv %[2]s.new %[2]s
		while :; do sleep 3600; done
	fi
	echo '{"cniVersion":"1.0.0","ips":[{"address":"10.99.0.2/24"}]}' ;;
esac
`

// crispd is killed while a network plugin hangs in ADD, and nothing else would end the
// plugin: the next crispd does, and the pod can be stopped, removed and made again.
func TestCrispdIsKilledWhileAPluginHangs(t *testing.T) {
	var hangs, begun string
	n, config := startNode(t, func(n *node, config string) error {
		hangs, begun = filepath.Join(n.work, "hangs"), filepath.Join(n.work, "begun")
		for path, text := range map[string]string{
			"hangs":                     "",
			"bin/hanging":               fmt.Sprintf(hangingPlugin, hangs, begun),
			"net.d/10-hanging.conflist": `{"cniVersion":"1.0.0","name":"hanging","plugins":[{"type":"hanging"}]}`,
		} {
			path = filepath.Join(n.work, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
				return err
			}
		}
		return os.WriteFile(config, fmt.Appendf(nil, "[cni]\nconf_dir = %q\nbin_dirs = [%q]\n", n.work+"/net.d", n.work+"/bin"), 0o644)
	})
	sb, err := n.sandboxConfig("p", nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	client := n.runtime()
	go func() {
		_, err := client.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: sb})
		ended <- err
	}()
	var pid string
	for deadline := time.Now().Add(time.Minute); pid == ""; time.Sleep(10 * time.Millisecond) {
		data, _ := os.ReadFile(begun)
		pid = strings.TrimSpace(string(data))
		if time.Now().After(deadline) {
			t.Fatal("the plugin did not begin")
		}
	}
	if err := n.stopDaemon(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Fatal("the pod was started")
	}
	if data, err := os.ReadFile("/proc/" + pid + "/comm"); err != nil {
		t.Fatalf("the plugin has ended with crispd, so nothing was tested: %q, %v", data, err)
	}
	if err := os.Remove(hangs); err != nil {
		t.Fatal(err)
	}
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
	list, err := n.runtime().ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	remove := func(id string) {
		t.Helper()
		if _, err := n.runtime().StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Errorf("stop: %v", err)
		}
		if _, err := n.runtime().RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	for _, left := range list.Items {
		remove(left.Id)
	}
	// The plugin dies as soon as it is scheduled, and its new parent may leave it a zombie.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		data, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(data), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the plugin runs on: %s", data)
		}
	}
	run, err := n.runtime().RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: sb})
	if err != nil {
		t.Fatalf("the pod's next start: %v", err)
	}
	remove(run.PodSandboxId)
}
