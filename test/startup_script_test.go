package test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// crictlCmd is: crictl info | inspectp POD | inspect POD CONTAINER
//
// It prints the runtime's verbose answers, which crictl prints below "info", a line for each key.
// Pods are those of an agent.
func (n *node) crictlCmd(ts *testscript.TestScript, args []string) error {
	text, err := n.crictl(args)
	fmt.Fprint(ts.Stdout(), text)
	return err
}

func (n *node) crictl(args []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var info map[string]string
	switch {
	case len(args) == 1 && args[0] == "info":
		resp, err := n.runtime().Status(ctx, &cri.StatusRequest{Verbose: true})
		if err != nil {
			return "", err
		}
		info = resp.Info
	case len(args) == 2 && args[0] == "inspectp":
		list, err := n.runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": args[1]}}})
		if err != nil || len(list.Items) == 0 {
			return "", fmt.Errorf("no sandbox of pod %s: %v", args[1], err)
		}
		resp, err := n.runtime().PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: list.Items[0].Id, Verbose: true})
		if err != nil {
			return "", err
		}
		info = resp.Info
	case len(args) == 3 && args[0] == "inspect":
		mine := map[string]string{"io.kubernetes.pod.name": args[1], "io.kubernetes.container.name": args[2]}
		list, err := n.runtime().ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: mine}})
		if err != nil || len(list.Containers) == 0 {
			return "", fmt.Errorf("no container %s of pod %s: %v", args[2], args[1], err)
		}
		resp, err := n.runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: list.Containers[0].Id, Verbose: true})
		if err != nil {
			return "", err
		}
		info = resp.Info
	default:
		return "", errUsage
	}
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(info)) {
		fmt.Fprintf(&text, "%s: %s\n", key, info[key])
	}
	return text.String(), nil
}

// slowCmd is: slow DIR [thaw] — mounts a frozen file system at DIR: writes to it wait until
// it is thawed.
func (n *node) slowCmd(ts *testscript.TestScript, args []string) error {
	switch {
	case len(args) == 2 && args[1] == "thaw":
		return output("fsfreeze", "-u", ts.MkAbs(args[0]))
	case len(args) != 1:
		return errUsage
	}
	dir, file := ts.MkAbs(args[0]), filepath.Join(n.dir, "slow.img")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(file, 8<<20); err != nil {
		return err
	}
	if err := output("mkfs.ext4", "-q", file); err != nil {
		return err
	}
	if err := output("mount", "-o", "loop", file, dir); err != nil {
		return err
	}
	ts.Defer(func() {
		_ = output("fsfreeze", "-u", dir) // the script has thawed it, unless it has failed
		ts.Check(syscall.Unmount(dir, syscall.MNT_DETACH))
	})
	return output("fsfreeze", "-f", dir)
}

// output runs a program, and returns an error with its output if it fails.
func output(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// throttled is a ResponseWriter that writes at the registry's rate, which may change meanwhile.
type throttled struct {
	http.ResponseWriter
	registry *fakeRegistry
}

// Write implements io.Writer.
func (t throttled) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		const steps = 20 // per second
		t.registry.mu.Lock()
		rate := t.registry.rate
		t.registry.mu.Unlock()
		part := p
		if rate > 0 {
			part = p[:min(len(p), max(rate/steps, 1))]
			time.Sleep(time.Second / steps)
		}
		n, err := t.ResponseWriter.Write(part)
		if written += n; err != nil {
			return written, err
		}
		t.ResponseWriter.(http.Flusher).Flush()
		p = p[n:]
	}
	return written, nil
}

// setRate limits the rate at which the registry sends blobs, in bytes a second; 0 is
// unlimited.
func (r *fakeRegistry) setRate(text string) error {
	rate, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rate = rate
	return nil
}
