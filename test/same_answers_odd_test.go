package test

import (
	"bytes"
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// oddPods asks for pods that cannot be, or hardly.
func (a *asker) oddPods() {
	ns := func(p *cri.PodSandboxConfig) *cri.NamespaceOption { return p.Linux.SecurityContext.NamespaceOptions }
	users := func(list ...*cri.IDMapping) func(*cri.PodSandboxConfig) {
		return func(p *cri.PodSandboxConfig) { ns(p).UsernsOptions = &cri.UserNamespace{Uids: list, Gids: list} }
	}
	sysctl := func(name, value string) func(*cri.PodSandboxConfig) {
		return func(p *cri.PodSandboxConfig) { p.Linux.Sysctls = map[string]string{name: value} }
	}
	one := &cri.IDMapping{HostId: 200000, Length: 65536}
	for name, edit := range map[string]func(*cri.PodSandboxConfig){
		"global sysctl": sysctl("vm.swappiness", "1"),
		"long hostname": func(p *cri.PodSandboxConfig) { p.Hostname = strings.Repeat("x", 65) },
		"odd hostname":  func(p *cri.PodSandboxConfig) { p.Hostname = "a/b c" },
		"target":        func(p *cri.PodSandboxConfig) { ns(p).Pid = cri.NamespaceMode_TARGET },
		"users of none": users(),
		"users":         users(one),
		"bad port": func(p *cri.PodSandboxConfig) {
			p.PortMappings = []*cri.PortMapping{{HostPort: 99999, ContainerPort: 80}}
		},
		"bad dns": func(p *cri.PodSandboxConfig) { p.DnsConfig = &cri.DNSConfig{Servers: []string{"a\nb"}} },
	} {
		config := a.podConfig("odd")
		edit(config)
		a.oddPod(name, &cri.RunPodSandboxRequest{Config: config})
	}
	a.oddPod("no config", &cri.RunPodSandboxRequest{})
	a.oddPod("no such handler", &cri.RunPodSandboxRequest{Config: a.podConfig("odd"), RuntimeHandler: "none"})
}

func (a *asker) oddPod(name string, req *cri.RunPodSandboxRequest) {
	_, err := a.runtime().RunPodSandbox(a.Context(), req)
	a.say("pod, %s: %s", name, a.code(name, err))
	left, err := a.runtime().ListPodSandbox(a.Context(), &cri.ListPodSandboxRequest{}) // a failure may leave one, too
	for _, sb := range left.GetItems() {
		a.removePod(sb.Id)
	}
	if err != nil {
		a.Error(err)
	}
}

// oddContainers asks for containers that cannot be, or hardly.
func (a *asker) oddContainers() {
	a.pod("odd")
	type edit = func(*cri.ContainerConfig)
	mount := func(m *cri.Mount) edit { return func(c *cri.ContainerConfig) { c.Mounts = []*cri.Mount{m} } }
	image := func(sub string) edit {
		return mount(&cri.Mount{ContainerPath: "/x", Readonly: true, Image: &cri.ImageSpec{Image: testImage}, ImageSubPath: sub})
	}
	sc := func(f func(*cri.LinuxContainerSecurityContext)) edit {
		return func(c *cri.ContainerConfig) { f(c.Linux.SecurityContext) }
	}
	for name, change := range map[string]edit{
		"unknown image":   func(c *cri.ContainerConfig) { c.Image = &cri.ImageSpec{Image: "crisp.test/none"} },
		"over a file":     mount(&cri.Mount{HostPath: "/tmp", ContainerPath: "/etc/passwd"}),
		"image, no path":  image("none"),
		"image, above":    image("../../etc"),
		"image, absolute": image("/etc"),
		"image, a file":   image("etc/passwd"),
		"no permissions": func(c *cri.ContainerConfig) {
			c.Devices = []*cri.Device{{HostPath: "/dev/null", ContainerPath: "/dev/x"}}
		},
		"odd capability": sc(func(s *cri.LinuxContainerSecurityContext) {
			s.Capabilities = &cri.Capability{AddCapabilities: []string{"NONE"}}
		}),
		"apparmor default": sc(func(s *cri.LinuxContainerSecurityContext) { s.Apparmor = &cri.SecurityProfile{} }),
		"unknown target": sc(func(s *cri.LinuxContainerSecurityContext) {
			s.NamespaceOptions = &cri.NamespaceOption{Pid: 3, TargetId: "none"}
		}),
		"host's network": sc(func(s *cri.LinuxContainerSecurityContext) { s.NamespaceOptions.Network = cri.NamespaceMode_NODE }),
	} {
		config := a.config("odd", "sleep", "for-ever")
		change(config)
		a.oddContainer(name, &cri.CreateContainerRequest{PodSandboxId: a.ids["odd"], Config: config, SandboxConfig: a.pods["odd"]})
	}
	a.oddContainer("no config", &cri.CreateContainerRequest{PodSandboxId: a.ids["odd"], SandboxConfig: a.pods["odd"]})
	a.oddContainer("no sandbox config", &cri.CreateContainerRequest{PodSandboxId: a.ids["odd"], Config: a.config("odd", "sleep", "for-ever")})
	a.oddContainer("no such sandbox", &cri.CreateContainerRequest{PodSandboxId: "none", Config: a.config("odd", "exit", "0"), SandboxConfig: a.pods["odd"]})
	_, err := a.runtime().StopPodSandbox(a.Context(), &cri.StopPodSandboxRequest{PodSandboxId: a.ids["odd"]})
	a.say("stop: %s", a.code("stop", err))
	a.oddContainer("not ready", &cri.CreateContainerRequest{PodSandboxId: a.ids["odd"], Config: a.config("odd", "exit", "0"), SandboxConfig: a.pods["odd"]})
}

func (a *asker) oddContainer(name string, req *cri.CreateContainerRequest) {
	made, err := a.runtime().CreateContainer(a.Context(), req)
	if err == nil {
		err = a.start(made.ContainerId)
		_, rerr := a.runtime().RemoveContainer(a.Context(), &cri.RemoveContainerRequest{ContainerId: made.ContainerId})
		if rerr != nil {
			a.Errorf("%s, container, %s: %v", a.socket, name, rerr)
		}
	}
	a.say("container, %s: %s", name, a.code(name, err))
}

// streams connects to commands and to containers.
func (a *asker) streams() {
	a.pod("streams")
	sleeps := func(name string, stdin, tty bool) string {
		c := a.config(name, "sleep", "for-ever")
		c.Stdin, c.Tty = stdin, tty
		return a.run("streams", c)
	}
	ids := map[string]string{"plain": sleeps("plain", false, false), "stdin": sleeps("stdin", true, false), "tty": sleeps("tty", true, true)}
	for _, in := range []string{"plain", "tty"} {
		for name, r := range map[string]*cri.ExecRequest{
			"ok":         {Cmd: []string{"/testbin", "print", "x", "eprint", "y"}, Stdout: true, Stderr: true},
			"three":      {Cmd: []string{"/testbin", "exit", "3"}, Stdout: true},
			"killed":     {Cmd: []string{"/testbin", "kill", "9"}, Stdout: true},
			"none":       {Cmd: []string{"/none"}, Stdout: true},
			"tty":        {Cmd: []string{"/testbin", "print", "x", "eprint", "y"}, Stdout: true, Tty: true},
			"tty stderr": {Cmd: []string{"/testbin", "print", "x"}, Stdout: true, Stderr: true, Tty: true},
			"stdin":      {Cmd: []string{"/testbin", "echo-stdin", "exit", "5"}, Stdin: true, Stdout: true},
			"no streams": {Cmd: []string{"/testbin", "print", "x"}},
		} {
			r.ContainerId = ids[in]
			resp, err := a.runtime().Exec(a.Context(), r)
			a.stream("exec stream "+name+" in "+in, resp.GetUrl(), err, r.Stdin, r.Stdout, r.Stderr, r.Tty)
		}
	}
	for name, r := range map[string]*cri.AttachRequest{
		"plain": {Stdout: true, Stderr: true}, "stdin": {Stdin: true, Stdout: true}, "tty": {Stdin: true, Stdout: true, Tty: true},
		"plain as tty": {Stdout: true, Tty: true}, "plain stdin": {Stdin: true, Stdout: true}, "tty as none": {Stdout: true, Stderr: true},
		"tty and stderr": {Stdout: true, Stderr: true, Tty: true}, "plain nothing": {},
	} {
		to, _, _ := strings.Cut(name, " ")
		r.ContainerId = ids[to]
		resp, err := a.runtime().Attach(a.Context(), r)
		a.stream("attach "+name, resp.GetUrl(), err, r.Stdin, r.Stdout, r.Stderr, r.Tty)
	}
}

// stream connects to a URL, and keeps how that ends, at the latest after a second.
func (a *asker) stream(what, at string, err error, stdin, stdout, stderr, tty bool) {
	if err != nil {
		a.say("%s: %s", what, a.code(what, err))
		return
	}
	u, perr := url.Parse(at)
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", u)
	if perr != nil || err != nil {
		a.Errorf("%v, %v", perr, err)
		return
	}
	var out, errs bytes.Buffer
	o := remotecommand.StreamOptions{Tty: tty}
	if stdin {
		o.Stdin = strings.NewReader("input\n")
	}
	if stdout {
		o.Stdout = &out
	}
	if stderr {
		o.Stderr = &errs
	}
	ctx, cancel := context.WithTimeout(a.Context(), time.Second)
	defer cancel()
	how := "ok"
	if err = e.StreamWithContext(ctx, o); errors.Is(err, context.DeadlineExceeded) {
		how = "goes on"
	} else if exit := (utilexec.CodeExitError{}); errors.As(err, &exit) {
		how = exit.Error()
	} else if err != nil {
		how = "failed"
	}
	a.say("%s: %s, %q, %q", what, how, out.String(), errs.String())
}
