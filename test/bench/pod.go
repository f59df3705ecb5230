package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// payload is the command of the containers, which memory.go leaves out.
var payload = []string{"sleep", "36000"}

// nobody is the user of restricted containers.
const nobody = 65534

// The paths that the kubelet masks in containers that are not privileged.
var (
	maskedPaths = []string{"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// kind is the name of a security context.
type kind string

const (
	restricted kind = "restricted"
	plain      kind = "without seccomp"
)

func (k kind) context(ns *cri.NamespaceOption) *cri.LinuxContainerSecurityContext {
	sc := &cri.LinuxContainerSecurityContext{
		NamespaceOptions: ns,
		MaskedPaths:      maskedPaths,
		ReadonlyPaths:    readonlyPaths,
		Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined},
	}
	if k == restricted {
		sc.Seccomp.ProfileType = cri.SecurityProfile_RuntimeDefault
		sc.NoNewPrivs = true
		sc.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"}}
		sc.RunAsUser = &cri.Int64Value{Value: nobody}
		sc.RunAsGroup = &cri.Int64Value{Value: nobody}
	}
	return sc
}

// pod is one sandbox with one container.
type pod struct {
	config    *cri.PodSandboxConfig
	container *cri.ContainerConfig
	handler   string
	sandboxID string
	id        string
}

func (b *bench) newPod(e *endpoint, net string, k kind) *pod {
	uid := rand.Text()
	p := &pod{}
	ns, hostname := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}, "bench"
	switch net {
	case "host":
		ns.Network, hostname = cri.NamespaceMode_NODE, "" // the node's UTS namespace comes with its network
	case "bridge":
		p.handler = e.bridge
	}
	p.config = &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: "bench-" + strings.ToLower(uid), Namespace: "bench", Uid: uid},
		Hostname:     hostname,
		LogDirectory: filepath.Join(b.logs, uid),
		DnsConfig:    &cri.DNSConfig{},
		Labels:       map[string]string{label: "true"},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: b.cgroupParent,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: ns,
				Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}},
		},
	}
	p.container = &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "sleep"},
		Image:    &cri.ImageSpec{Image: e.imageRef, UserSpecifiedImage: b.image},
		Command:  payload,
		Labels:   map[string]string{label: "true"},
		LogPath:  "sleep.log",
		Linux: &cri.LinuxContainerConfig{
			Resources:       &cri.LinuxContainerResources{OomScoreAdj: 1000},
			SecurityContext: k.context(ns),
		},
	}
	return p
}

// timing receives the duration of each call; it may be nil.
type timing func(call string, took time.Duration)

func (t timing) call(ctx context.Context, name string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	start := time.Now()
	if err := f(ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if t != nil {
		t(name, time.Since(start))
	}
	return nil
}

// up runs the pod and its container.
func (e *endpoint) up(ctx context.Context, p *pod, t timing) error {
	if err := os.MkdirAll(p.config.LogDirectory, 0o755); err != nil {
		return err
	}
	if err := t.call(ctx, "RunPodSandbox", func(ctx context.Context) error {
		res, err := e.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config, RuntimeHandler: p.handler})
		p.sandboxID = res.GetPodSandboxId()
		return err
	}); err != nil {
		return err
	}
	if err := t.call(ctx, "CreateContainer", func(ctx context.Context) error {
		res, err := e.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
			PodSandboxId: p.sandboxID, Config: p.container, SandboxConfig: p.config})
		p.id = res.GetContainerId()
		return err
	}); err != nil {
		return err
	}
	return t.call(ctx, "StartContainer", func(ctx context.Context) error {
		_, err := e.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.id})
		return err
	})
}

// down removes the pod of up.
func (e *endpoint) down(ctx context.Context, p *pod, t timing) error {
	if err := t.call(ctx, "StopContainer", func(ctx context.Context) error {
		_, err := e.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.id})
		return err
	}); err != nil {
		return err
	}
	if err := t.call(ctx, "RemoveContainer", func(ctx context.Context) error {
		_, err := e.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: p.id})
		return err
	}); err != nil {
		return err
	}
	if err := e.removeSandbox(ctx, p.sandboxID, t); err != nil {
		return err
	}
	return os.RemoveAll(p.config.LogDirectory)
}

func (e *endpoint) removeSandbox(ctx context.Context, id string, t timing) error {
	if err := t.call(ctx, "StopPodSandbox", func(ctx context.Context) error {
		_, err := e.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return err
	}); err != nil {
		return err
	}
	return t.call(ctx, "RemovePodSandbox", func(ctx context.Context) error {
		_, err := e.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}
