package test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// life is that of a pod and its containers, with the events.
func (a *asker) life() {
	events := a.events()
	a.pod("p")
	a.seePod("empty", a.ids["p"])
	c := a.config("c", "catch", "sleep", "for-ever")
	c.Mounts = []*cri.Mount{
		{HostPath: a.src, ContainerPath: "/data", Readonly: true, RecursiveReadOnly: true},
		{HostPath: a.src, ContainerPath: "/more", Propagation: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
		{HostPath: filepath.Join(a.src, "none"), ContainerPath: "/none"},
	}
	c.Linux.Resources = &cri.LinuxContainerResources{CpuShares: 100, CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500, CpusetCpus: "0"}
	sc := c.Linux.SecurityContext
	sc.RunAsUser, sc.RunAsGroup, sc.SupplementalGroups = &cri.Int64Value{Value: 1000}, &cri.Int64Value{Value: 2000}, []int64{7, 8}
	plain := a.config("plain", "sleep", "for-ever")
	plain.Image, plain.Linux = &cri.ImageSpec{Image: "crisp.test/named"}, nil
	id, err := a.create("p", c)
	a.say("create: %s", a.code("create", err))
	a.ids["c"] = id
	a.see("created", id)
	a.say("start: %s, again: %s", a.code("start", a.start(id)), a.code("start again", a.start(id)))
	a.see("running", id)
	a.seePod("running", a.ids["p"])
	a.say("stop: %s, again: %s", a.code("stop", a.stop(id, 10)), a.code("stop again", a.stop(id, 10)))
	a.say("start when exited: %s", a.code("start when exited", a.start(id)))
	a.see("exited", id)
	other := a.run("p", plain)
	a.ids["plain"] = other
	a.see("plain", other)
	_, err = a.runtime().StopPodSandbox(a.Context(), &cri.StopPodSandboxRequest{PodSandboxId: a.ids["p"]})
	a.say("stop pod: %s", a.code("stop pod", err))
	a.see("killed", other)
	a.seePod("not ready", a.ids["p"])
	_, err = a.runtime().RemoveContainer(a.Context(), &cri.RemoveContainerRequest{ContainerId: id})
	a.say("remove: %s", a.code("remove", err))
	a.see("removed", id)
	a.removePod(a.ids["p"])
	a.seePod("removed", a.ids["p"])
	for i, e := range events(a.ids["p"]) {
		a.say("event %d %s", i, e)
	}
}

// events returns a function that returns the events up to the removal of a pod.
func (a *asker) events() func(last string) []string {
	ctx, cancel := context.WithCancel(a.Context())
	stream, err := a.runtime().GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		a.Error(err)
	}
	time.Sleep(time.Second) // containerd answers before it listens
	return func(last string) (list []string) {
		defer cancel()
		for {
			e, err := stream.Recv()
			if err != nil {
				return append(list, err.Error())
			}
			sb := e.PodSandboxStatus
			if e.ContainerId != last && sb.GetId() != last {
				continue // of other pods
			}
			var states []string
			for _, c := range e.ContainersStatuses {
				states = append(states, c.Metadata.Name+" "+c.State.String())
			}
			slices.Sort(states)
			list = append(list, fmt.Sprintf("%s of %s: %s, address %v, %q", e.ContainerEventType, e.ContainerId, sb.GetState(), sb.GetNetwork().GetIp() != "", states))
			if e.ContainerId == last && e.ContainerEventType == cri.ContainerEventType_CONTAINER_DELETED_EVENT {
				return list
			}
		}
	}
}

// see asks for all there is to know about a container.
func (a *asker) see(when, id string) {
	r, ctx := a.runtime(), a.Context()
	st, err := r.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	a.report(when+" status", st, err)
	stats, err := r.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: id})
	a.report(when+" stats", stats, err)
	all, err := r.ListContainerStats(ctx, &cri.ListContainerStatsRequest{Filter: &cri.ContainerStatsFilter{Id: id}})
	a.say("%s in stats: %d %s", when, len(all.GetStats()), a.code(when+" in stats", err))
	_, err = r.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: id})
	a.say("%s reopen: %s", when, a.code(when+" reopen", err))
	_, err = r.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: id, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 96 << 20, CpuShares: 512}})
	a.say("%s update: %s", when, a.code(when+" update", err))
	if st, err = r.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id}); err == nil {
		a.report(when+" resources", st.Status.Resources, nil)
	}
}

// seePod asks for all there is to know about a pod.
func (a *asker) seePod(when, id string) {
	r, ctx := a.runtime(), a.Context()
	st, err := r.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
	a.report(when+" pod", st, err)
	stats, err := r.PodSandboxStats(ctx, &cri.PodSandboxStatsRequest{PodSandboxId: id})
	a.report(when+" pod stats", stats, err)
}

// ends runs what ends in special ways, or cannot be started.
func (a *asker) ends() {
	a.pod("ends")
	command := func(words ...string) func(*cri.ContainerConfig) {
		return func(c *cri.ContainerConfig) { c.Command = words }
	}
	for name, edit := range map[string]func(*cri.ContainerConfig){
		"three":         command("/testbin", "exit", "3"),
		"killed":        command("/testbin", "kill", "9"),
		"no program":    command("/none"),
		"a directory":   command("/etc"),
		"not in PATH":   command("none"),
		"no command":    command(),
		"no cwd":        func(c *cri.ContainerConfig) { c.WorkingDir = "/new/dir" },
		"cwd a file":    func(c *cri.ContainerConfig) { c.WorkingDir = "/etc/passwd" },
		"relative cwd":  func(c *cri.ContainerConfig) { c.WorkingDir = "relative" },
		"no user":       func(c *cri.ContainerConfig) { c.Linux.SecurityContext.RunAsUsername = "nobody-there" },
		"little memory": func(c *cri.ContainerConfig) { c.Linux.Resources.MemoryLimitInBytes = 4096 },
		"deep log":      func(c *cri.ContainerConfig) { c.LogPath = "deep/er/0.log" },
		"log above":     func(c *cri.ContainerConfig) { c.LogPath = "../above.log" },
		"odd variable":  func(c *cri.ContainerConfig) { c.Envs = []*cri.KeyValue{{Key: "a=b", Value: []byte("x")}} },
		"oom of a child": func(c *cri.ContainerConfig) {
			c.Command, c.Linux.Resources.MemoryLimitInBytes = []string{"/testbin", "fork", "eat", "300"}, 64<<20
		},
		"own signal": func(c *cri.ContainerConfig) {
			c.StopSignal, c.Command = cri.Signal_SIGNAL_SIGUSR1, []string{"/testbin", "catch", "print", "ready", "sleep", "for-ever"}
		},
	} {
		c := a.config(strings.ReplaceAll(name, " ", "-"), "exit", "0")
		edit(c)
		id, err := a.create("ends", c)
		a.say("create %s: %s", name, a.code("create "+name, err))
		if err != nil {
			continue
		}
		if err := a.start(id); err != nil {
			a.say("start %s: %s", name, a.code("start "+name, err))
		} else if name == "own signal" {
			a.until(id, "ready")
			a.say("stop %s: %s", name, a.code("stop "+name, a.stop(id, 20)))
		}
		st := a.until(id, "")
		a.say("end of %s: %d %q started %v finished %v message %v log %s", name, st.GetExitCode(), st.GetReason(), st.GetStartedAt() > 0, st.GetFinishedAt() > 0, st.GetMessage() != "", st.GetLogPath())
	}
}
