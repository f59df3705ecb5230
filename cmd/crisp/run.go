package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// runCommand makes a pod of one container from flags, as docker run does.
func runCommand(c *cli) *cobra.Command {
	var r request
	cmd := &cobra.Command{Use: "run [-d] [-i] [-t] [--rm] [-p 8080:80] [-v /h:/c] [-e K=V] IMAGE [ARG...]", Short: "run a pod of one container", Annotations: verbatim, ValidArgsFunction: c.completeImages}
	r.flags(cmd.Flags())
	return runs(cmd, func(args []string) error {
		before, behind := behindDash(cmd, args)
		switch {
		case len(before) == 0:
			return usageError("run takes an image")
		case len(before) > 1 && behind != nil: // the dashes belong to the command
			behind = append([]string{"--"}, behind...)
		case r.detach && (r.remove || r.container.Stdin || r.container.TTY):
			return usageError("-d leaves nobody to attach to the container or to remove the pod: a Job with ttlSecondsAfterFinished removes its own")
		}
		if err := r.buildPod(before[0], append(before[1:], behind...)); err != nil {
			return err
		}
		pod := &r.pod
		if r.dryRun != "" {
			return c.printPod(pod, cmp.Or(r.output, "yaml"))
		}
		if err := c.makeClaims(pod.Namespace, r.claims); err != nil {
			return err
		}
		if err := c.makeRuntimeClass(ptr.Deref(pod.Spec.RuntimeClassName, "")); err != nil {
			return err
		}
		if _, err := c.send(http.MethodPost, pathOf(podKind, pod.Namespace, ""), nil, pod, nil); err != nil {
			return err
		}
		if !r.container.Stdin && !r.container.TTY && !r.remove {
			if r.output == "yaml" || r.output == "json" {
				return c.printPod(pod, r.output)
			}
			fmt.Fprintf(c.stdout, "pod/%s created\n", pod.Name)
			return c.admitted(pod)
		}
		err := c.accompany(&r)
		if r.remove {
			if removeErr := c.runOut(objectOf(podKind, pod)); err == nil {
				err = removeErr
			}
		}
		return err
	})
}

// makeRuntimeClass creates the RuntimeClass of this name, for the handler of that name, if it is
// missing. It is an error if the runtime has no such handler, as far as the node knows them.
func (c *cli) makeRuntimeClass(name string) error {
	if name == "" {
		return nil
	}
	err := c.fetch(pathOf(classKind, "", name), nil, &nodev1.RuntimeClass{})
	if !errors.Is(err, fault.NotFound) {
		return err
	}
	handlers, err := c.handlers()
	if err != nil {
		return err
	}
	if len(handlers) > 0 && !slices.Contains(handlers, name) {
		return fault.NotFound.Errorf("there is no RuntimeClass %s, and the runtime has no handler of that name; it has %q", name, handlers)
	}
	_, err = c.send(http.MethodPost, pathOf(classKind, "", ""), nil, nodev1.RuntimeClass{
		TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: name,
	}, nil)
	if err != nil {
		return fmt.Errorf("RuntimeClass %s: %w", name, err)
	}
	return nil
}

// handlers returns the names of the runtime's handlers, as far as the node knows them.
func (c *cli) handlers() ([]string, error) {
	var nodes v1.NodeList
	if err := c.fetch("/api/v1/nodes", nil, &nodes); err != nil {
		return nil, err
	}
	var names []string
	for i := range nodes.Items {
		for _, h := range nodes.Items[i].Status.RuntimeHandlers {
			if h.Name != "" { // the default one
				names = append(names, h.Name)
			}
		}
	}
	return names, nil
}

// makeClaims creates the missing claims.
func (c *cli) makeClaims(namespace string, names []string) error {
	for _, name := range names {
		var claim v1.PersistentVolumeClaim
		err := c.fetch(pathOf(claimKind, namespace, name), nil, &claim)
		if errors.Is(err, fault.NotFound) {
			_, err = c.send(http.MethodPost, pathOf(claimKind, namespace, ""), nil, v1.PersistentVolumeClaim{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
				Spec: v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}},
			}, nil)
		}
		if err != nil {
			return fmt.Errorf("claim %s: %w", name, err)
		}
	}
	return nil
}

// interruptedGrace is the grace period in seconds of an interrupted container, as in docker stop.
const interruptedGrace = 10

// runOut deletes a pod that has finished or was interrupted, and waits until it is gone. It does
// not use c.ctx, which an interrupt has cancelled.
func (c *cli) runOut(t object) error {
	grace := int64(1)
	if c.ctx.Err() != nil {
		grace = interruptedGrace
	}
	end := *c
	var cancel context.CancelFunc
	end.ctx, cancel = undo.Context(c.ctx)
	defer cancel()
	err := end.delete(t, deletion{grace: grace})
	if err == nil {
		err = end.gone(t, time.Minute)
	}
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

func (c *cli) printPod(pod *v1.Pod, form string) error {
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return err
	}
	delete(o, "status")
	return c.printValue(o, form)
}

// hasBegun reports whether the container of a pod runs or has ended. The error, with docker's exit code,
// says why nothing will come of it. A pull is tried twice, as a registry may fail once: pulled is for it
// to remember the first.
func hasBegun(pod *v1.Pod, pulled *bool) (bool, error) {
	status := statusOf(pod, "main")
	for _, t := range []*v1.ContainerStateTerminated{status.State.Terminated, status.LastTerminationState.Terminated} {
		if t != nil && t.Reason == "StartError" {
			return false, execError(errors.New(t.Message))
		}
	}
	if status.State.Running != nil || status.State.Terminated != nil {
		return true, nil
	}
	if err := rejected(pod); err != nil || status.State.Waiting == nil {
		return false, err
	}
	w := status.State.Waiting
	switch w.Reason {
	case "ImagePullBackOff":
		*pulled = true
	case "ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed":
		if !*pulled {
			return false, nil
		}
		fallthrough
	case "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError":
		return false, &exitError{exitExecFailed, w.Reason + ": " + w.Message}
	}
	return false, nil
}

// rejected returns why the node has refused a pod, nil if it has not.
func rejected(pod *v1.Pod) error {
	if pod.Status.Phase == v1.PodFailed && statusOf(pod, "main").State.Terminated == nil {
		return &exitError{exitExecFailed, fmt.Sprintf("pod %s failed: %s %s", pod.Name, pod.Status.Reason, pod.Status.Message)}
	}
	return nil
}

// admission bounds how long a detached run waits for the node's answer.
const admission = 5 * time.Second

// admitted waits until the node has taken or refused a pod. Without an answer in time it is taken.
func (c *cli) admitted(pod *v1.Pod) error {
	_, err := c.untilPod(pod.Namespace, pod.Name, admission, "", func(now *v1.Pod) (bool, error) {
		return now.Status.StartTime != nil, rejected(now)
	})
	if e, ok := errors.AsType[*exitError](err); ok && e.code == exitTimeout {
		return nil
	}
	return err
}

// accompany shows the output of the pod's container until it ends, and returns its exit code as
// ours.
func (c *cli) accompany(r *request) error {
	pod := &r.pod
	ctx, cancel := context.WithCancel(c.ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		c.showPull(ctx, pod.Spec.Containers[0].Image, "auto")
	}()
	pulled := false // in vain
	now, err := c.untilPod(pod.Namespace, pod.Name, r.timeout, "pod "+pod.Name+" has not started", func(now *v1.Pod) (bool, error) {
		return hasBegun(now, &pulled)
	})
	cancel()
	<-shown
	if err != nil {
		return err
	}
	if statusOf(now, "main").State.Running != nil && (r.container.Stdin || r.container.TTY) {
		if err := c.attach(pod.Namespace, pod.Name, "main", r.container.Stdin, r.container.TTY); err != nil && exitCode(err) == exitExecFailed {
			return err
		}
	} else if err := c.logs(pod.Namespace, pod.Name, "", logFlags{follow: true, tail: -1}); err != nil {
		return err
	}
	now, err = c.untilPod(pod.Namespace, pod.Name, time.Minute, "pod "+pod.Name+" has not ended", func(now *v1.Pod) (bool, error) {
		return statusOf(now, "main").State.Terminated != nil || !r.remove, nil
	})
	if err != nil {
		return err
	}
	if t := statusOf(now, "main").State.Terminated; t != nil && t.ExitCode != 0 {
		return &exitError{code: int(t.ExitCode)}
	}
	return nil
}
