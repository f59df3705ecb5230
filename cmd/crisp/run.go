package main

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A request is what the flags of run say.
type request struct {
	namespace, name, restart, class, output, dryRun, pull string
	ports, volumes, env, labels                           list
	interactive, tty, remove, hostNetwork                 bool
	timeout                                               time.Duration
}

// runCommand makes a pod of one container from flags, as docker run does.
func runCommand(c *cli) *cobra.Command {
	var r request
	cmd := &cobra.Command{Use: "run [-i] [-t] [--rm] [-p 8080:80] [-v /h:/c] [-e K=V] IMAGE [-- ARG...]", Short: "run a pod of one container"}
	fs := cmd.Flags()
	namespaceFlag(fs, &r.namespace)
	fs.StringVar(&r.name, "name", "", "`name` of the pod (default: made up)")
	fs.VarP(&r.ports, "publish", "p", "publish a `port`: [IP:]HOST:CONTAINER[/udp]")
	fs.VarP(&r.volumes, "volume", "v", "mount a host `path`: HOST:CONTAINER[:ro]")
	fs.VarP(&r.env, "env", "e", "set an environment `variable`: NAME=VALUE")
	fs.VarP(&r.labels, "labels", "l", "set a `label`: KEY=VALUE")
	fs.StringVar(&r.restart, "restart", "", "`policy`: Always, OnFailure or Never (default: Never with -i, else Always)")
	fs.StringVar(&r.class, "runtime-class", "", "`name` of the RuntimeClass")
	fs.StringVar(&r.pull, "pull", "", "`policy`: Always, IfNotPresent or Never")
	streamFlags(fs, &r.interactive, &r.tty, "give the container our standard input", "give the container a terminal")
	fs.BoolVar(&r.remove, "rm", false, "wait for its end and delete the pod")
	fs.BoolVar(&r.hostNetwork, "host-network", false, "use the node's network")
	fs.StringVar(&r.dryRun, "dry-run", "", "client: only print the pod")
	outputFlag(fs, &r.output, "yaml", "json", "name")
	fs.DurationVar(&r.timeout, "timeout", 5*time.Minute, "how long the container may take to start")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) == 0 {
			return usageError("run takes an image")
		}
		pod, err := r.pod(rest[0], rest[1:])
		if err != nil {
			return err
		}
		text, err := json.Marshal(pod)
		if err != nil {
			return err
		}
		if r.dryRun != "" {
			return c.printPod(text, cmp.Or(r.output, "yaml"))
		}
		resp, err := c.ask(http.MethodPost, pathOf(podKind, r.namespace, ""), nil, text, nil)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if !r.interactive && !r.tty && !r.remove {
			if r.output == "yaml" || r.output == "json" {
				return c.printPod(text, r.output)
			}
			fmt.Fprintf(c.stdout, "pod/%s created\n", pod.Name)
			return nil
		}
		err = c.accompany(pod, r)
		if r.remove {
			if removeErr := c.runOut(target{podKind, pod.Name}, pod.Namespace); err == nil {
				err = removeErr
			}
		}
		return err
	}
	return cmd
}

// interruptedGrace is how many seconds a container has to end that is interrupted,
// as many as docker stop gives.
const interruptedGrace = 10

// runOut deletes a pod that has done its work or is interrupted, and waits until it
// is gone. It does so after an interrupt too, so not within c.ctx.
func (c *cli) runOut(t target, namespace string) error {
	grace := int64(1)
	if c.ctx.Err() != nil {
		grace = interruptedGrace
	}
	ctx, cancel := undo.Context(c.ctx)
	defer cancel()
	end := *c
	end.ctx = ctx
	return end.removePod(t, namespace, grace)
}

func (c *cli) removePod(t target, namespace string, grace int64) error {
	err := c.remove(t, namespace, grace, false)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.until(time.Minute, t.String()+" is still there", func() (bool, error) { return c.is(t, namespace, "delete") })
}

func (c *cli) printPod(text []byte, form string) error {
	var o map[string]any
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	delete(o, "status")
	return c.printValue(o, form)
}

// pod is the pod of the flags.
func (r *request) pod(image string, args []string) (*v1.Pod, error) {
	name := r.name
	if name == "" {
		base := image[strings.LastIndex(image, "/")+1:]
		base, _, _ = strings.Cut(strings.ReplaceAll(base, "@", ":"), ":")
		name = strings.Trim(strings.ToLower(strings.ReplaceAll(base, "_", "-")), "-.") + "-" + strings.ToLower(rand.Text()[:5])
	}
	policy := v1.RestartPolicy(r.restart)
	if policy == "" {
		policy = v1.RestartPolicyAlways
		if r.interactive || r.remove {
			policy = v1.RestartPolicyNever
		}
	}
	pod := &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.namespace, Labels: map[string]string{"run": name}},
		Spec:       v1.PodSpec{RestartPolicy: policy, HostNetwork: r.hostNetwork},
	}
	if r.class != "" {
		pod.Spec.RuntimeClassName = &r.class
	}
	box := v1.Container{
		Name: "main", Image: image, Args: args, Stdin: r.interactive, StdinOnce: r.interactive, TTY: r.tty, ImagePullPolicy: v1.PullPolicy(r.pull),
	}
	for _, text := range r.labels {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, usageError("-l %s: want KEY=VALUE", text)
		}
		pod.Labels[key] = value
	}
	for _, text := range r.env {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, usageError("-e %s: want NAME=VALUE", text)
		}
		box.Env = append(box.Env, v1.EnvVar{Name: key, Value: value})
	}
	for _, text := range r.ports {
		port, err := portOf(text)
		if err != nil {
			return nil, usageError("-p %s: want [IP:]HOST:CONTAINER[/udp]", text)
		}
		box.Ports = append(box.Ports, port)
	}
	for i, text := range r.volumes {
		words := strings.Split(text, ":")
		if len(words) < 2 || len(words) > 3 || len(words) == 3 && words[2] != "ro" && words[2] != "rw" {
			return nil, usageError("-v %s: want HOST:CONTAINER[:ro]", text)
		}
		volume := "v" + strconv.Itoa(i)
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: volume, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: words[0]}}})
		box.VolumeMounts = append(box.VolumeMounts, v1.VolumeMount{Name: volume, MountPath: words[1], ReadOnly: len(words) == 3 && words[2] == "ro"})
	}
	pod.Spec.Containers = []v1.Container{box}
	return pod, nil
}

// portOf reads "8080:80", "127.0.0.1:8080:80" and "[::1]:53:53/udp".
func portOf(text string) (v1.ContainerPort, error) {
	rest, protocol, _ := strings.Cut(text, "/")
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return v1.ContainerPort{}, fmt.Errorf("no colon")
	}
	inside, err := strconv.ParseUint(rest[i+1:], 10, 16)
	if err != nil {
		return v1.ContainerPort{}, err
	}
	p := v1.ContainerPort{ContainerPort: int32(inside), Protocol: v1.Protocol(strings.ToUpper(protocol))}
	host := rest[:i]
	if j := strings.LastIndexByte(host, ':'); j >= 0 {
		ip, err := netip.ParseAddr(strings.Trim(host[:j], "[]"))
		if err != nil {
			return p, err
		}
		p.HostIP, host = ip.String(), host[j+1:]
	}
	outside, err := strconv.ParseUint(host, 10, 16)
	p.HostPort = int32(outside)
	return p, err
}

// accompany shows what the pod's container does, to its end; the container's exit
// code becomes ours.
func (c *cli) accompany(pod *v1.Pod, r request) error {
	var now v1.Pod
	look := func() error { return c.fetch(pathOf(podKind, pod.Namespace, pod.Name), nil, &now) }
	err := c.until(r.timeout, "pod "+pod.Name+" has not started", func() (bool, error) {
		now = v1.Pod{}
		if err := look(); err != nil {
			return false, err
		}
		state := containerState(&now, "main")
		if now.Status.Phase == v1.PodFailed && state.Terminated == nil {
			return false, fmt.Errorf("pod %s failed: %s %s", pod.Name, now.Status.Reason, now.Status.Message)
		}
		return state.Running != nil || state.Terminated != nil, nil
	})
	if err != nil {
		return err
	}
	if containerState(&now, "main").Running != nil && (r.interactive || r.tty) {
		if err := c.attach(pod.Namespace, pod.Name, "main", r.interactive, r.tty); err != nil && exitCode(err) == exitExecFailed {
			return err
		}
	} else if err := c.logs(pod.Namespace, pod.Name, "", logFlags{follow: true, tail: -1}); err != nil {
		return err
	}
	err = c.until(time.Minute, "pod "+pod.Name+" has not ended", func() (bool, error) {
		now = v1.Pod{}
		err := look()
		return containerState(&now, "main").Terminated != nil || !r.remove, err
	})
	if err != nil {
		return err
	}
	if t := containerState(&now, "main").Terminated; t != nil && t.ExitCode != 0 {
		return &exitError{code: int(t.ExitCode)}
	}
	return nil
}
